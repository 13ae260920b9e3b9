"""`pilotlight simulate`."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving import config
from serving.cli.console import print_note
from serving.cli.flags.settings_flags import build_flags
from serving.cli.formats.value_parsers import parse_list
from serving.cli.simulation import simulate_cluster
from serving.config import ServeConfig

if TYPE_CHECKING:
    from autoscaler.decision import ScalingSpec
    from autoscaler.simulation.cluster_replay import ClusterConditions
    from autoscaler.simulation.replay import ProgressCallback
    from autoscaler.simulation.result import SimulationConditions, SimulationResult
    from autoscaler.simulation.traces import TrafficTrace

# The server's settings that a simulation uses.
_SETTINGS = (
    "idle_timeout",
    "stable_window",
    "panic_window",
    "scale_down_delay",
    "target_concurrency",
    "max_nodes",
    "node_concurrency",
    "request_timeout",
    "queue_requests",
    "tick",
    "memory_bytes",
)
# The smallest fraction of the work that updates the progress bar.
_STEP = 0.005


def _with_simulation_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with flags for the settings in _SETTINGS; it gets them as `settings`."""
    hints = typing.get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "settings"
    ]
    followed = [parameter for parameter in build_flags(ServeConfig) if parameter.name in _SETTINGS]

    def run_command(**flags: Any) -> None:
        settings = config.load_config(ServeConfig, {name: flags.pop(name) for name in _SETTINGS})
        command(settings=settings, **flags)

    run_command.__doc__ = command.__doc__
    run_command.__name__ = command.__name__
    run_command.__signature__ = inspect.Signature([*own, *followed])  # type: ignore[attr-defined]
    return run_command


def _parse_start_durations(text: str) -> tuple[float, ...]:
    """`0.2,8` as numbers."""
    try:
        seconds = tuple(float(item) for item in parse_list(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not SECONDS,...") from error
    if not seconds or not all(0 <= one < math.inf for one in seconds):
        raise typer.BadParameter(f"{text!r} must be one or more numbers of seconds, 0 or more.")
    return seconds


@_with_simulation_flags
def simulate(
    settings: ServeConfig,
    *,
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A CSV file (columns second, requests, and maybe version), an access log of the server, a "
            "folder of such logs, or one of office-hours, bursty, sparse: made-up days.",
            show_default=False,
        ),
    ],
    start_seconds: Annotated[
        Any,
        typer.Option(
            parser=_parse_start_durations,
            metavar="SECONDS,...",
            help="How long a node takes to start, as measured; of several numbers each node takes the next.",
        ),
    ] = "0.2",
    service_seconds: Annotated[
        float, typer.Option(min=0, help="Seconds for which a node computes one request.")
    ] = 0.01,
    min_nodes: Annotated[int, typer.Option(min=0, help="Nodes that each version always has.")] = 0,
    node_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes of memory a node takes; 0: memory is never short.")
    ] = 0,
    versions: Annotated[
        int, typer.Option(min=1, help="So many versions, each beginning at another point of the trace.")
    ] = 1,
    cells: Annotated[
        int,
        typer.Option(
            min=0,
            help="Place the versions on so many servers of a database. All have the daily course of the "
            "trace, some much more of the requests than others.",
        ),
    ] = 0,
    requests_per_second: Annotated[
        float, typer.Option(min=0.001, help="With --cells: requests of all versions, on average.")
    ] = 1000.0,
    processors: Annotated[int, typer.Option(min=1, help="With --cells: processors of each server.")] = 16,
    losses: Annotated[
        int,
        typer.Option(min=0, help="With --cells: servers that are lost in turn, each for half an hour."),
    ] = 4,
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Replay only so many seconds from the beginning.", show_default=False),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the random generator: made-up days, and when in its second a request comes."
        ),
    ] = 0,
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save the requests as CSV, too.", show_default=False),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, with all settings.", show_default=False)
    ] = False,
) -> None:
    """Replay requests with other settings: what would it cost, and who would wait.

    The server's own decisions are made on a clock that jumps; nodes are only numbers.
    Settings can also come from PILOTLIGHT_<NAME> in the environment, as for the server.

    Example: pilotlight simulate office-hours --idle-timeout 600 --start-seconds 0.2,0.3
    """
    from autoscaler.simulation.replay import simulate_traces  # noqa: PLC0415  start-up time
    from serving.cli.simulation import trace_files  # noqa: PLC0415

    if not math.isfinite(service_seconds):
        raise typer.BadParameter(f"--service-seconds must be a number; it is {service_seconds}.")
    if cells:
        conditions_of = partial(
            _build_cluster_conditions,
            settings,
            cells,
            versions,
            processors=processors,
            service_seconds=service_seconds,
            node_bytes=node_bytes,
            losses=losses,
        )
        traces = _select_traces(trace_files.load_traces(trace, seed), 1, seconds)
        _simulate_cluster(trace, traces, requests_per_second, conditions_of, as_json=json_)
        return
    found = _select_traces(trace_files.load_traces(trace, seed), versions, seconds)
    if write is not None:
        trace_files.write_traces(write, found)
        print_note(f"Wrote {write}.")
    policy = _build_scaling_spec(settings, min_nodes)
    conditions = _build_conditions(settings, start_seconds, service_seconds, node_bytes)
    began = time.monotonic()
    with _show_progress(f"Replaying {trace}") as progress:
        result = simulate_traces(found, policy, conditions, progress)
    print_note(f"Simulated {_format_duration(result.seconds)} in {time.monotonic() - began:.1f} s.")
    if json_:
        print(json.dumps(_as_json(trace, policy, conditions, result), indent=2))
    else:
        _print_result(result)


def _select_traces(traces: list[TrafficTrace], versions: int, seconds: float | None) -> list[TrafficTrace]:
    from autoscaler.simulation.traces import replicate_trace  # noqa: PLC0415

    if versions > 1:
        if len(traces) > 1:
            raise typer.BadParameter(f"--versions is for traces of one version; this one has {len(traces)}.")
        traces = replicate_trace(traces[0], versions)
    return traces if seconds is None else [dataclasses.replace(trace, cut=seconds) for trace in traces]


def _build_scaling_spec(settings: ServeConfig, min_nodes: int) -> ScalingSpec:
    from autoscaler import machine  # noqa: PLC0415
    from autoscaler.decision import ScalingSpec  # noqa: PLC0415

    return ScalingSpec(
        min_nodes=min_nodes,
        max_nodes=max(min_nodes, settings.max_nodes or machine.count_cores()),
        target_concurrency=settings.target_concurrency,
        idle_window=settings.idle_timeout,
        stable_window=settings.stable_window,
        panic_window=settings.panic_window,
        scale_down_delay=settings.scale_down_delay,
    )


def _build_conditions(
    settings: ServeConfig, start_seconds: tuple[float, ...], service_seconds: float, node_bytes: int
) -> SimulationConditions:
    from autoscaler import machine  # noqa: PLC0415
    from autoscaler.simulation.result import SimulationConditions  # noqa: PLC0415

    return SimulationConditions(
        start_seconds=start_seconds,
        service_seconds=service_seconds,
        node_concurrency=settings.node_concurrency,
        request_timeout=settings.request_timeout,
        queue_requests=settings.queue_requests,
        tick=settings.tick,
        node_bytes=node_bytes,
        memory_bytes=(settings.memory_bytes or machine.available_memory()) if node_bytes else None,
    )


def _build_cluster_conditions(
    settings: ServeConfig,
    cells: int,
    versions: int,
    curve: list[float],
    *,
    processors: int,
    service_seconds: float,
    node_bytes: int,
    losses: int,
) -> ClusterConditions:
    from autoscaler import machine  # noqa: PLC0415
    from autoscaler.simulation.cluster_replay import ClusterConditions  # noqa: PLC0415

    return ClusterConditions(
        servers=cells,
        versions=versions,
        curve=curve,
        node_bytes=simulate_cluster.choose_node_bytes(node_bytes),
        memory_bytes=settings.memory_bytes or machine.available_memory(),
        processors=processors,
        service_seconds=service_seconds,
        idle_window=settings.idle_timeout,
        max_nodes=settings.max_nodes or None,
        losses=losses,
    )


def _simulate_cluster(
    trace: str,
    traces: list[TrafficTrace],
    requests_per_second: float,
    build_conditions: Callable[[list[float]], ClusterConditions],
    *,
    as_json: bool,
) -> None:
    began = time.monotonic()
    with _show_progress(f"Simulating {trace}") as progress:
        conditions, result = simulate_cluster.run_cluster(
            traces, requests_per_second, build_conditions, progress
        )
    print_note(f"Simulated {_format_duration(result.seconds)} in {time.monotonic() - began:.1f} s.")
    if as_json:
        print(json.dumps(simulate_cluster.as_json(trace, conditions, result), indent=2))
    else:
        simulate_cluster.print_cluster(result)


@contextmanager
def _show_progress(title: str) -> Iterator[ProgressCallback]:
    """A bar where there is a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415  start-up time
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        shown = 0.0

        def update_bar(part: float) -> None:
            nonlocal shown
            if part - shown >= _STEP:
                shown = part
                bar.update(task, completed=part)

        yield update_bar


# ---- what is printed


def _as_json(
    trace: str, policy: ScalingSpec, conditions: SimulationConditions, result: SimulationResult
) -> dict[str, Any]:
    return {
        "trace": trace,
        "policy": dataclasses.asdict(policy),
        "conditions": dataclasses.asdict(conditions),
        **dataclasses.asdict(result),
        "policy_microseconds": result.policy_microseconds,
    }


def _print_result(result: SimulationResult) -> None:
    rows = {
        "versions": f"{result.versions:,}",
        "requests": f"{result.requests:,}",
        "refused": f"{result.refused:,}",
        "timed out": f"{result.timed_out:,}",
        "cold starts": f"{result.cold_starts:,}",
        "waited for a node": f"{result.held:,}{_format_share(result.held, result.requests)}",
        "median wait": f"{result.wait_p50:.3f} s",
        "99 % waited at most": f"{result.wait_p99:.3f} s",
        "longest wait": f"{result.wait_max:.3f} s",
        "most nodes": f"{result.most_nodes:,}",
        "node-seconds": f"{result.node_seconds:,.0f}",
        "of these idle": f"{result.idle_share:.1%}",
        "policy": f"{result.policy_microseconds:.1f} µs per tick and version",
    }
    width = max(map(len, rows)) + 2
    for name, value in rows.items():
        print(f"{name:{width}}{value}")


def _format_share(part: int, whole: int) -> str:
    return f" ({part / whole:.2%})" if part else ""


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h"
