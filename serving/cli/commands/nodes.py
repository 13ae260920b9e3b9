"""`pilotlight nodes`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.formats.printers import print_table

_POLL_SECONDS = 1.0
_CLEAR = "\x1b[H\x1b[2J"

Json = Mapping[str, Any]

_VERSION_HEADINGS = (
    "VERSION", "STATE", "READY", "STARTING", "RUNNING", "QUEUED", "PID", "NODE", "AGE", "PRIVATE", "SHARED",
)  # fmt: skip
_PILOT_HEADINGS = ("PILOT", "STATE", "PID", "AGE", "LIT_IN", "NODES_FORKED", "PRIVATE", "SHARED")


def nodes(
    client: ApiClient,
    output: CommandOutput,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again each second, until Ctrl-C.", show_default=False)
    ] = False,
) -> None:
    """Show every version with its nodes, the pilots they are forked from, and the memory they take.

    PRIVATE memory is a process's own.
    SHARED is its share of what it has in common with others; sums count nothing twice.
    A pilot's row includes the fork that it keeps ready.

    Example: pilotlight nodes --watch
    """
    try:
        while True:
            fleet = client.get_unversioned("/nodes")
            if watch and sys.stdout.isatty():
                print(_CLEAR, end="")
            show_nodes(fleet, client.project_name, output)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        if not watch:
            raise


def show_nodes(fleet: Json, project: str, output: CommandOutput) -> None:
    """What `GET /nodes` answered, as tables. Versions of `project` go by their short names."""
    if output.format is not None:
        output.show(fleet)
        return
    print_table(
        _VERSION_HEADINGS,
        [row for version in fleet["versions"] for row in _build_node_rows(version, project)],
    )
    if fleet["pilots"]:
        print()
        print_table(_PILOT_HEADINGS, [_build_pilot_row(pilot) for pilot in fleet["pilots"]])
    print()
    for line in _summarize_memory(fleet):
        print(line)
    if server := fleet.get("server"):
        print(f"These are the nodes of {server} alone; `pilotlight servers` lists all servers.")


def _build_node_rows(version: Json, project: str) -> Iterator[Sequence[str]]:
    """A row for each node, or one for a version without nodes; the first row only has the version's cells."""
    version_cells = (
        shorten_name(version["version"], project),
        version["state"],
        *(str(version[count]) for count in ("ready", "starting", "running", "queued")),
    )
    if not version["nodes"]:
        yield version_cells
    for node in version["nodes"]:
        yield (
            *version_cells,
            _format_optional(node["pid"]),
            _format_start_kind(node),
            format_duration(node["ageSeconds"]),
            *_format_memory(node),
        )
        version_cells = ("",) * len(version_cells)


def _format_start_kind(node: Json) -> str:
    """How a node was started, and its state if it is not ready."""
    how = "forked" if node["forked"] else "cold"
    return how if node["state"] == "ready" else f"{how}, {node['state']}"


def _build_pilot_row(pilot: Json) -> Sequence[str]:
    return (
        pilot["pilot"],
        pilot["state"],
        _format_optional(pilot["pid"]),
        format_duration(pilot["ageSeconds"]),
        format_duration(pilot["litSeconds"]),
        str(pilot["nodesForked"]),
        *_format_memory(pilot),
    )


def _format_memory(process: Json) -> tuple[str, str]:
    private, proportional = process["privateBytes"], process["proportionalBytes"]
    return (_format_size(private), _format_size(proportional - private)) if proportional else ("", "")


def _summarize_memory(fleet: Json) -> Iterator[str]:
    """The memory in all, and that of each pilot."""
    living = [node for version in fleet["versions"] for node in version["nodes"]]
    parts = {
        "the server": [fleet["gateway"]],
        _format_count(len(living), "node"): living,
        _format_count(len(fleet["pilots"]), "pilot"): fleet["pilots"],
    }
    sums = {name: sum(one["proportionalBytes"] for one in group) for name, group in parts.items()}
    details = ", ".join(f"{name} {_format_size(size)}" for name, size in sums.items())
    yield f"Memory in all: {_format_size(sum(sums.values()))} ({details})."
    for pilot in fleet["pilots"]:
        if pilot["state"] == "lit" and pilot["proportionalBytes"]:
            yield (
                f"The pilot {pilot['pilot']} uses {_format_size(pilot['proportionalBytes'])}, "
                f"{_format_size(pilot['privateBytes'])} of it its own."
            )
        elif pilot.get("reason"):
            yield f"The pilot {pilot['pilot']} is {pilot['state']}: {pilot['reason']}"


def shorten_name(name: str, project: str) -> str:
    """`MODEL/VERSION` for a version of the project, else its full name."""
    if not name.startswith(f"{project}/"):
        return name
    _, _, _, model, _, version = name.split("/")
    return f"{model}/{version}"


def format_duration(seconds: float | None) -> str:
    """A duration such as 1h05m."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2g}s"
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}{seconds % size // part:02.0f}{smaller}"
    return f"{seconds // 1:.0f}s"


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _format_size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _format_optional(value: Any) -> str:
    return "" if value is None else str(value)
