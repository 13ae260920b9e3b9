"""`pilotlight doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving import config
from serving.config import ServeConfig, environment_without_settings

if TYPE_CHECKING:
    from serving.cli.health.finding import Finding

Check = Callable[[], "Finding"]

_AT_A_TIME = 4
_FRAMEWORKS = ("scikit-learn", "xgboost", "tensorflow", "apache-beam")


class Format(StrEnum):
    """How findings are written."""

    TABLE = "table"
    JSON = "json"


def doctor(
    *,
    state_dir: Annotated[
        Path | None, typer.Option(help="The server's state folder (setting state_dir).", show_default=False)
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address it is to listen on (setting host).", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="The port it is to listen on (setting port).", show_default=False)
    ] = None,
    bucket: Annotated[
        str,
        typer.Option(metavar="URI", help="A bucket to look into: gs://BUCKET[/FOLDER].", show_default=False),
    ] = "",
    write: Annotated[
        bool,
        typer.Option("--write", help="Also write an object to the bucket and remove it.", show_default=False),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Import no framework: that takes seconds.", show_default=False)
    ] = False,
    format_: Annotated[
        Format, typer.Option("--format", help="json prints a list of findings.")
    ] = Format.TABLE,
) -> None:
    """Check what a server needs here, and say what to do about what is wrong.

    Looks at the settings that `pilotlight serve` would have, changes nothing, and needs no server.
    Exit code 1 if something fails; warnings are no failures. docs/doctor.md lists every check.

    Example: pilotlight doctor --bucket gs://my-bucket
    """
    if write and not bucket:
        raise typer.BadParameter("--write needs a --bucket.")
    settings = config.load_config(ServeConfig, {"state_dir": state_dir, "host": host, "port": port})
    findings = examine(checks(settings, bucket, write=write, quick=quick))
    if format_ is Format.JSON:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for line in lines(findings):
            print(line)
    raise typer.Exit(any(finding.level == "fail" for finding in findings))


def checks(settings: ServeConfig, bucket: str, *, write: bool, quick: bool) -> Sequence[Check]:
    """All checks, in the order in which they are shown."""
    from serving.cli.health import (  # noqa: PLC0415  start-up time
        frameworks,
        machine,
        network,
        runtimes,
        state,
        storage,
    )

    folder, environment = settings.state_dir.expanduser().absolute(), environment_without_settings()
    server = state.server_pid(folder)
    found: list[Check] = [
        machine.system,
        frameworks.python,
        partial(machine.cores, settings),
        partial(machine.memory, settings),
        machine.open_files,
        partial(machine.clock, state.newest_change(folder)),
        partial(network.port, settings.host, settings.port, server),
        partial(network.grpc_port, settings, server),
        partial(state.writable, folder),
        partial(state.space, settings, folder),
        partial(state.schema, folder),
        lambda: state.leftovers(state.processes()),
        partial(storage.credentials, environment, bool(bucket)),
    ]
    if bucket:
        found.append(partial(storage.bucket, bucket))
    if write:
        found.append(partial(storage.bucket_writable, bucket))
    found += [frameworks.pip, *(partial(frameworks.versions, name) for name in _FRAMEWORKS)]
    found += runtimes.checks(folder, settings.runtime, quick=quick)
    if not quick:
        found += [partial(frameworks.pilot, name, environment) for name in frameworks.list_pilots()]
    return found


def examine(found: Sequence[Check]) -> list[Finding]:
    """What the checks find, some at the same time: those with processes of their own take seconds."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(_run, found))


def lines(findings: Sequence[Finding]) -> list[str]:
    """A line for each finding, its advice below it, and a last line that sums up."""
    shown = []
    for finding in findings:
        shown.append(f"{finding.level:<4}  {finding.check:<16}  {finding.message}")
        if finding.advice:
            shown.append(f"{'':<4}  {'':<16}  -> {finding.advice}")
    failed = sum(finding.level == "fail" for finding in findings)
    warned = sum(finding.level == "warn" for finding in findings)
    return [*shown, f"{len(findings)} checks: {failed} failed, {warned} with a warning."]


def _run(check: Check) -> Finding:
    from serving.cli.health.finding import fail  # noqa: PLC0415

    try:
        return check()
    except Exception as error:  # one check that cannot be made must not hide the others
        return fail("doctor", f"A check failed: {type(error).__name__}: {error}", "Please report this.")
