"""`pilotlight doctor`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from serving import config
from serving.cli.health.result import CheckFunction, format_results, run_checks
from serving.config import ServeConfig, environment_without_settings


class HealthReportFormat(StrEnum):
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
        HealthReportFormat, typer.Option("--format", help="json prints a list of results.")
    ] = HealthReportFormat.TABLE,
) -> None:
    """Check what a server needs here, and say what to do about what is wrong.

    Looks at the settings that `pilotlight serve` would have, changes nothing, and needs no server.
    Exit code 1 if something fails; warnings are no failures. docs/doctor.md lists every check.

    Example: pilotlight doctor --bucket gs://my-bucket
    """
    if write and not bucket:
        raise typer.BadParameter("--write needs a --bucket.")
    settings = config.load_config(ServeConfig, {"state_dir": state_dir, "host": host, "port": port})
    results = list(run_checks(collect_checks(settings, bucket, write=write, quick=quick)))
    if format_ is HealthReportFormat.JSON:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        for line in format_results(results):
            print(line)
    raise typer.Exit(any(result.level == "fail" for result in results))


def collect_checks(
    settings: ServeConfig, bucket: str, *, write: bool, quick: bool, is_running: bool = False
) -> Sequence[CheckFunction]:
    """All checks, in the order in which they are shown; `is_running`: beside the server that they are for.

    Such a server has its ports and its state file: these are not looked for as before a start.
    """
    from serving.cli.health import (  # noqa: PLC0415  start-up time
        frameworks,
        machine,
        server_scaling,
        state,
        storage,
    )
    from serving.gateway.control.pilot_specs import list_framework_pilots  # noqa: PLC0415

    folder, environment = settings.state_dir.expanduser().absolute(), environment_without_settings()
    server = state.find_server_pid(folder)
    found: list[CheckFunction] = [
        machine.check_system,
        frameworks.check_python,
        partial(machine.check_cores, settings),
        partial(machine.check_memory, settings),
        machine.check_open_files,
        partial(machine.check_clock, state.find_newest_change(folder)),
    ]
    if not is_running:
        found += [
            partial(machine.check_port, settings.host, settings.port, server),
            partial(machine.check_grpc_port, settings, server),
        ]
    found += [
        partial(state.check_writable, folder),
        partial(state.check_free_space, settings, folder),
        partial(state.check_database, settings.state)
        if settings.state
        else partial(state.check_state_file, folder, is_running=is_running),
        lambda: state.check_leftovers(state.list_processes()),
        partial(storage.check_credentials, environment, bool(bucket)),
    ]
    if settings.scaled_deployment:
        found.append(partial(server_scaling.check_server_scaling, settings))
    if bucket:
        found.append(partial(storage.check_bucket, bucket))
    if write:
        found.append(partial(storage.check_bucket_writable, bucket))
    found.append(frameworks.check_pip)
    found += [partial(frameworks.check_distribution, needed) for needed in frameworks.list_distributions()]
    found += frameworks.create_runtime_checks(folder, settings.runtime, quick=quick)
    if not quick:
        found += [partial(frameworks.check_pilot, spec) for spec in list_framework_pilots(environment)]
    return found
