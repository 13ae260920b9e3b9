"""Rates and starts of real Flink and Spark beside the embedded runner, as a table for docs/batch.md.

    python -m tests.batch.engines.rates [ROWS] [--rounds 3] [--models LIST] [--engines LIST]

`install.sh` writes the environment variables that it needs. Each runner has two workers; a cluster is started
anew in each round, and with another model first. All runs of a model must give the same bytes. The table has
medians; each run is told on stderr when it ends.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.batch.engines.clusters import ENGINES
from tests.batch.engines.local_batch import (
    EMBEDDED,
    Batch,
    batch,
    build_input,
    environment,
    write_rows,
)
from tests.batch.engines.sample_models import BUILDERS

_VARIABLES = {
    "Flink": ("TESTS_FLINK", "TESTS_FLINK_JOB_SERVER"),
    "Spark": ("TESTS_SPARK", "TESTS_SPARK_JOB_SERVER"),
}
_LABELS = {
    "tensorflow": "SavedModel",
    "xgboost": "XGBoost",
    "sklearn": "scikit-learn",
    "routine": "custom routine",
}
_POLL_SECONDS = 0.01


class MeasurementError(Exception):
    """There are no figures: a run has failed, or its results are not those of the first one."""


@dataclass(frozen=True)
class RunFigures:
    """Seconds from the start of the command to the first block of results, from that to the last result, and
    of the whole command.
    """

    start: float
    work: float
    whole: float


def measure_batch(started: Batch) -> RunFigures:
    """Waits for its end. Raises MeasurementError if it fails."""
    first = 0.0
    while started.process.poll() is None:
        if not first and started.has_begun():
            first = time.time()
        time.sleep(_POLL_SECONDS)
    end = time.time()
    if started.process.returncode or not first:
        raise MeasurementError(f"the job failed: {started.said[-2000:]}")
    # Results are moved to where they are expected as they were written.
    last = max(path.stat().st_mtime for path in started.output.glob("prediction.results-*"))
    return RunFigures(first - started.begun_at, last - first, end - started.begun_at)


def digest_results(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("prediction.*")):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@contextmanager
def running_runner(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Beam's name of the runner, and its options."""
    if name == "embedded":
        yield EMBEDDED, ""
        return
    with ENGINES[name](folder) as engine:
        engine.add_workers()
        yield engine.runner, f"{engine.options} {environment('PROCESS', folder)}"


def measure_all(
    folder: Path, rows: int, rounds: int, models: Sequence[str], engines: Sequence[str]
) -> Mapping[tuple[str, str], Sequence[RunFigures]]:
    """The figures of each model and runner. Raises MeasurementError."""
    write_rows(folder / "in", rows)
    inputs = {model: build_input(folder, model) for model in models}
    found: dict[tuple[str, str], list[RunFigures]] = {}
    digests: dict[str, str] = {}
    for number in range(rounds):
        turn = number % len(models)
        for runner in ("embedded", *engines):
            with running_runner(runner, folder / f"{runner}-{number}") as (name, options):
                for model in (*models[turn:], *models[:turn]):
                    output = folder / f"{model}-{runner}-{number}"
                    with batch(inputs[model], output, name, options) as started:
                        figures = measure_batch(started)
                    digest = digest_results(output)
                    if digests.setdefault(model, digest) != digest:
                        raise MeasurementError(f"{output} has other results than the first run of {model}")
                    shutil.rmtree(output)
                    found.setdefault((model, runner), []).append(figures)
                    print(f"{model}, {runner}, round {number + 1}: {figures}", file=sys.stderr)
    return found


def format_table(found: Mapping[tuple[str, str], Sequence[RunFigures]], rows: int) -> str:
    lines = [
        "| model | runner | rows/s | beside the embedded one | start | whole command |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for (model, runner), runs in sorted(found.items(), key=lambda one: list(_LABELS).index(one[0][0])):
        rate = _median_rate(runs, rows)
        beside = rate / _median_rate(found[model, "embedded"], rows)
        start = statistics.median(one.start for one in runs)
        whole = statistics.median(one.whole for one in runs)
        label = _LABELS[model] if runner == "embedded" else ""
        lines.append(f"| {label} | {runner} | {rate:,.0f} | {beside:.2f} | {start:.1f} s | {whole:.1f} s |")
    return "\n".join(lines)


def _median_rate(runs: Sequence[RunFigures], rows: int) -> float:
    return rows / statistics.median(one.work for one in runs)


def main() -> None:
    summary, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.batch.engines.rates",
        description=summary,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", type=int, nargs="?", default=1_000_000, metavar="ROWS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default=",".join(_LABELS), metavar="LIST", help="default: %(default)s")
    parser.add_argument("--engines", default=",".join(ENGINES), metavar="LIST", help="default: %(default)s")
    given = parser.parse_args()
    models, engines = given.models.split(","), given.engines.split(",")
    if unknown := (set(models) - BUILDERS.keys()) | (set(engines) - ENGINES.keys()):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if missing := [name for one in engines for name in _VARIABLES[one] if not os.environ.get(name)]:
        parser.error(f"{', '.join(missing)}: not set; see tests/batch/engines/install.sh")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pilotlight-rates-") as folder:
        try:
            found = measure_all(Path(folder), given.rows, given.rounds, models, engines)
        except MeasurementError as error:
            sys.exit(str(error))
    print(f"{given.rows:,} rows, medians of {given.rounds} rounds, load {before:.1f} at the beginning\n")
    print(format_table(found, given.rows))


if __name__ == "__main__":
    main()
