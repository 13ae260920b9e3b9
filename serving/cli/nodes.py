"""`pilotlight nodes`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from serving.cli.client import Client
from serving.cli.output import Output
from serving.cli.tables import print_table

_EVERY = 1.0
_CLEAR = "\x1b[H\x1b[2J"

Json = Mapping[str, Any]

_VERSIONS = (
    "VERSION", "STATE", "READY", "STARTING", "RUNNING", "QUEUED", "PID", "NODE", "AGE", "PRIVATE", "SHARED",
)  # fmt: skip
_PILOTS = ("PILOT", "STATE", "PID", "AGE", "LIT_IN", "NODES_FORKED", "PRIVATE", "SHARED")


def nodes(
    client: Client,
    output: Output,
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
            fleet = client.look("/nodes")
            if watch and sys.stdout.isatty():
                print(_CLEAR, end="")
            show(fleet, client.project, output)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(_EVERY)
    except KeyboardInterrupt:
        if not watch:
            raise


def show(fleet: Json, project: str, output: Output) -> None:
    """What `GET /nodes` answered, as tables. Versions of `project` go by their short names."""
    if output.format is not None:
        output.show(fleet)
        return
    print_table(_VERSIONS, [row for version in fleet["versions"] for row in _version(version, project)])
    if fleet["pilots"]:
        print()
        print_table(_PILOTS, [_pilot(pilot) for pilot in fleet["pilots"]])
    print()
    for line in _sums(fleet):
        print(line)


def _version(version: Json, project: str) -> Iterator[Sequence[str]]:
    """A row for each node, and one for a version without any; what is the version's is told once."""
    about = (
        short(version["version"], project),
        version["state"],
        *(str(version[count]) for count in ("ready", "starting", "running", "queued")),
    )
    if not version["nodes"]:
        yield about
    for node in version["nodes"]:
        yield (*about, _text(node["pid"]), _born(node), format_duration(node["ageSeconds"]), *_memory(node))
        about = ("",) * len(about)


def _born(node: Json) -> str:
    """How a node came to be, and where it stands if it takes no requests."""
    how = "forked" if node["forked"] else "cold"
    return how if node["state"] == "ready" else f"{how}, {node['state']}"


def _pilot(pilot: Json) -> Sequence[str]:
    return (
        pilot["pilot"],
        pilot["state"],
        _text(pilot["pid"]),
        format_duration(pilot["ageSeconds"]),
        format_duration(pilot["litSeconds"]),
        str(pilot["nodesForked"]),
        *_memory(pilot),
    )


def _memory(process: Json) -> tuple[str, str]:
    """A process's own memory and its share of what is shared."""
    private, proportional = process["privateBytes"], process["proportionalBytes"]
    return (_size(private), _size(proportional - private)) if proportional else ("", "")


def _sums(fleet: Json) -> Iterator[str]:
    """What all of it takes, and what the pilots cost."""
    living = [node for version in fleet["versions"] for node in version["nodes"]]
    parts = {
        "the server": [fleet["gateway"]],
        _count(len(living), "node"): living,
        _count(len(fleet["pilots"]), "pilot"): fleet["pilots"],
    }
    sums = {name: sum(one["proportionalBytes"] for one in group) for name, group in parts.items()}
    details = ", ".join(f"{name} {_size(size)}" for name, size in sums.items())
    yield f"Memory in all: {_size(sum(sums.values()))} ({details})."
    for pilot in fleet["pilots"]:
        if pilot["state"] == "lit" and pilot["proportionalBytes"]:
            yield (
                f"The lit pilot {pilot['pilot']} costs {_size(pilot['proportionalBytes'])}, "
                f"{_size(pilot['privateBytes'])} of it its own."
            )
        elif pilot.get("reason"):
            yield f"The pilot {pilot['pilot']} is {pilot['state']}: {pilot['reason']}"


def short(name: str, project: str) -> str:
    """`MODEL/VERSION` for a version of the project, else its full name."""
    if not name.startswith(f"{project}/"):
        return name
    _, _, _, model, _, version = name.split("/")
    return f"{model}/{version}"


def format_duration(seconds: float | None) -> str:
    """Seconds as people say them, to two digits or so."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.2g}s"
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}{seconds % size // part:02.0f}{smaller}"
    return f"{seconds // 1:.0f}s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _text(value: Any) -> str:
    return "" if value is None else str(value)
