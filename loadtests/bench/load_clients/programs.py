"""Programs that make the load: wrk if it is installed, else oha, else our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.bench.reporting.results import ERRORS, LoadFigures
from loadtests.bench.targets.processes import pinned_to_core

_GRACE_SECONDS = 60
_SCRIPT = Path(__file__).with_name("load.lua")


class LoadProgramError(Exception):
    """The load program printed no figures; the text is its output."""


@dataclass(frozen=True)
class LoadProgram:
    """A program that loads a URL with the lines of a file."""

    name: str
    build_command: Callable[[str, Path, int, float], Sequence[str]]
    """From URL, file of bodies, connections and seconds."""
    parse_output: Callable[[str], LoadFigures]
    """From its standard output; ValueError or LookupError when there is nothing to read."""
    core: int | None = None

    def run_load(
        self,
        url: str,
        bodies: Path,
        connections: int,
        seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> LoadFigures:
        """Load a server for so many seconds. Raises LoadProgramError."""
        with pinned_to_core(self.core):
            process = subprocess.Popen(
                self.build_command(url, bodies, connections, seconds),
                env={**os.environ, "BENCH_BODIES": str(bodies), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        try:
            out, err = process.communicate(timeout=seconds + _GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            raise LoadProgramError(f"{self.name} did not end") from None
        finally:
            process.kill()
            process.wait()
        try:
            return self.parse_output(out)
        except (ValueError, LookupError, TypeError) as error:
            raise LoadProgramError(f"{self.name}: {(err or out).strip()[-300:]}") from error


def choose_program(name: str, core: int | None) -> LoadProgram:
    """The program of this name, or for `auto` the best that is installed."""
    if name == "auto":
        name = next((one for one in ("wrk", "oha") if shutil.which(one)), "own")
        if name == "own":
            print(
                "neither wrk nor oha is installed: loading with a client of our own, which cannot saturate "
                "the fastest servers; their rates will be too low",
                file=sys.stderr,
            )
    make, read = _PROGRAMS[name]
    return LoadProgram(name, make, read, core)


def _wrk_command(url: str, _: Path, connections: int, seconds: float) -> list[str]:
    length = f"-d{max(1, round(seconds))}s"
    return ["wrk", "-t1", f"-c{connections}", length, "--timeout", "20s", "-s", str(_SCRIPT), url]


def _oha_command(url: str, bodies: Path, connections: int, seconds: float) -> list[str]:
    shape = ["-z", f"{seconds:g}s", "-c", str(connections), "-m", "POST", "-T", "application/json"]
    return ["oha", "--no-tui", "--output-format", "json", *shape, "-Z", str(bodies), url]


def _own_command(url: str, bodies: Path, connections: int, seconds: float) -> list[str]:
    load = [url, str(bodies), str(connections), str(seconds)]
    return [sys.executable, "-m", "loadtests.bench.load_clients.python_client", *load]


def parse_json_line(out: str) -> LoadFigures:
    """Figures from the last line that is an object, as load.lua and our own client print it."""
    return _make_figures(
        json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("{")))
    )


def parse_oha(out: str) -> LoadFigures:
    """Figures from oha's JSON; what was under way when time was up is no error."""
    found = json.loads(out)
    summary, parts = found["summary"], found["latencyPercentiles"]
    statuses: Mapping[str, int] = found["statusCodeDistribution"]
    lost = [count for why, count in found["errorDistribution"].items() if "deadline" not in why]
    return _make_figures(
        {
            "requests": sum(statuses.values()),
            "seconds": summary["total"],
            **{f"{part}_us": (parts[part] or 0) * 1e6 for part in ("p50", "p90", "p99")},
            "max_us": summary["slowest"] * 1e6,
            "mean_us": summary["average"] * 1e6,
            "err_status": sum(count for status, count in statuses.items() if not status.startswith("2")),
            "err_read": sum(lost),
        }
    )


def _make_figures(found: Mapping[str, Any]) -> LoadFigures:
    """Raises ValueError when no request was answered."""
    if not found["requests"]:
        raise ValueError("no request was answered")
    return LoadFigures(
        requests=found["requests"],
        seconds=found["seconds"],
        rps=round(found["requests"] / found["seconds"], 2),
        **{name: round(found[name], 1) for name in ("p50_us", "p90_us", "p99_us", "max_us", "mean_us")},
        errors={name: found[name] for name in ERRORS if found.get(name)},
    )


_PROGRAMS: dict[
    str, tuple[Callable[[str, Path, int, float], Sequence[str]], Callable[[str], LoadFigures]]
] = {
    "wrk": (_wrk_command, parse_json_line),
    "oha": (_oha_command, parse_oha),
    "own": (_own_command, parse_json_line),
}
PROGRAM_NAMES = ("auto", *_PROGRAMS)
