"""Batch prediction of JSON lines beside a plain loop and beside Beam's own RunInference, in one run.

    python -m loadtests.bench.batch [ROWS] [STOCK_ROWS]

XGBoost, 100 trees on 30 features. Rates count from the first record read to the last result written; the
loop, the one worker and the stock pipeline have one core each, the two workers have all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from batch.messages import JobOutcome, JobReport, JobRequest, ModelSource

FILES = 8
NICE = 10
_FEATURES = 30
_ROWS_PER_CALL = 1024
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def make_model(folder: Path) -> None:
    """Train a booster of 100 trees, for our runtime, for the loop and for Beam's handler."""
    import xgboost as xgb
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    folder.mkdir(parents=True)
    model = xgb.train(
        {"objective": "binary:logistic", "max_depth": 6, "seed": 0, "eta": 0.1, "nthread": 1},
        xgb.DMatrix(data.data, data.target),
        100,
    )
    model.save_model(folder / "model.ubj")
    model.save_model(folder.with_suffix(".json"))


def make_rows(folder: Path, rows: int, files: int = FILES) -> None:
    """Write rows like those the model was trained on, as JSON lines."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer().data
    random = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for place in range(files):
        with (folder / f"part-{place:03d}.jsonl").open("w") as file:
            for start in range(0, rows // files, 10_000):
                count = min(10_000, rows // files - start)
                some = data[random.integers(0, len(data), count)] * (1 + 0.05 * random.standard_normal())
                file.writelines("[" + ",".join(f"{value:.6g}" for value in row) + "]\n" for row in some)


def measure_loop(model: Path, rows: Path, out: Path) -> float:
    """Seconds of the plain loop that one would write by hand, without imports and loading."""
    import orjson
    import xgboost as xgb

    booster = xgb.Booster(model_file=str(model / "model.ubj"))
    booster.set_param({"nthread": 1})
    start = time.perf_counter()
    with out.open("wb") as results:
        for path in sorted(rows.iterdir()):
            with path.open("rb") as file:
                while lines := list(islice(file, _ROWS_PER_CALL)):
                    array = np.array(orjson.loads(b"[" + b",".join(lines) + b"]"), np.float32)
                    found = booster.inplace_predict(array)
                    text = orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY)
                    results.write(text[1:-1].replace(b",", b"\n") + b"\n")
    return time.perf_counter() - start


def measure_beam_stock(model: Path, rows: Path, out: Path) -> float:
    """Seconds of Beam's ReadFromText, RunInference and WriteToText with its XGBoost handler, in all."""
    # Beam's handler imports it for inputs of that kind, of which there are none here.
    sys.modules.setdefault("datatable", ModuleType("datatable")).Frame = object  # type: ignore[attr-defined]

    import apache_beam as beam
    import xgboost
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.ml.inference.xgboost_inference import XGBoostModelHandlerNumpy
    from apache_beam.options.pipeline_options import PipelineOptions

    handler = XGBoostModelHandlerNumpy(
        model_class=xgboost.XGBRegressor,
        model_state=str(model.with_suffix(".json")),
        min_batch_size=64,
        max_batch_size=_ROWS_PER_CALL,
    )
    start = time.perf_counter()
    with beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"])) as pipeline:
        (
            pipeline
            | beam.io.ReadFromText(str(rows / "*"))
            | beam.Map(lambda line: np.array(json.loads(line), np.float32).reshape(1, -1))
            | RunInference(handler)
            | beam.Map(lambda result: json.dumps(np.asarray(result.inference).ravel().tolist()))
            | beam.io.WriteToText(str(out))
        )
    return time.perf_counter() - start


def run_job(
    folder: Path, model: Path, rows: Path, workers: int, cores: Sequence[int]
) -> tuple[JobOutcome, float]:
    """Run one of our jobs in a process of its own; returns its outcome, and the seconds from start to end."""
    out, scratch = folder / "out", folder / "scratch"
    shutil.rmtree(out, ignore_errors=True)
    request = JobRequest(
        job="benchmark",
        uid="benchmark",
        model=ModelSource(model_dir=str(model)),
        input_paths=(f"{rows}/*",),
        output_path=str(out),
        max_workers=workers,
        scratch_dir=str(scratch),
        cache_dir=str(folder / "cache"),
        cache_bytes=1 << 30,
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "batch"],
        input=msgspec.json.encode(request),
        capture_output=True,
        check=False,
        env=os.environ | _ONE_THREAD,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    elapsed = time.perf_counter() - start
    report = msgspec.json.decode(done.stdout.splitlines()[-1], type=JobReport)
    if report.done is None:
        raise SystemExit(f"the job failed: {report} {done.stderr.decode()[-2000:]}")
    return report.done, elapsed


def _limit_process(cores: Sequence[int]) -> None:
    """Run on these cores, with the niceness of jobs."""
    os.sched_setaffinity(0, cores)
    os.nice(NICE)


def _measure_in_process(function: str, *paths: Path) -> float:
    """The seconds of one of the functions above, in a process of its own, on one core."""
    done = subprocess.run(
        [sys.executable, "-m", "loadtests.bench.batch", function, *map(str, paths)],
        stdout=subprocess.PIPE,
        check=True,
        env=os.environ | _ONE_THREAD | {"PYTHONWARNINGS": "ignore"},
        preexec_fn=lambda: _limit_process([min(os.sched_getaffinity(0))]),
    )
    return float(done.stdout.splitlines()[-1])


def compare_rates(rows: int, stock_rows: int, rounds: int = 3) -> None:
    """Measure all of them in turns and print the median rate of each."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as temporary:
        folder = Path(temporary)
        model, many, few = folder / "model", folder / "rows", folder / "few"
        make_model(model)
        make_rows(many, rows)
        make_rows(few, stock_rows, files=1)
        rates: dict[str, list[float]] = {"loop": [], "one worker": [], "two workers": []}
        for _ in range(rounds):
            rates["loop"].append(rows / _measure_in_process("loop", model, many, folder / "loop.jsonl"))
            rates["one worker"].append(rows / run_job(folder, model, many, 1, cores[:1])[0].seconds)
            rates["two workers"].append(rows / run_job(folder, model, many, 2, cores)[0].seconds)
        medians: dict[str, Any] = {name: float(np.median(found)) for name, found in rates.items()}
        for name, rate in medians.items():
            print(f"{name}: {rate:,.0f} rows/s, {rate / medians['loop']:.2f} of the loop")
        print(f"two workers: {medians['two workers'] / medians['one worker']:.2f} times one")
        if stock_rows:
            rate = stock_rows / _measure_in_process("stock", model, few, folder / "stock")
            _, elapsed = run_job(folder, model, many, 1, cores[:1])
            print(f"RunInference as it comes, {stock_rows:,} rows, start included: {rate:,.0f} rows/s")
            print(f"  one worker, first record to last result: {medians['one worker'] / rate:.0f} times that")
            print(f"  one worker, {rows:,} rows, start included: {rows / elapsed / rate:.0f} times that")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["loop", *paths]:
            print(measure_loop(*map(Path, paths)))
        case ["stock", *paths]:
            print(measure_beam_stock(*map(Path, paths)))
        case numbers:
            compare_rates(*map(int, numbers or ["1000000", "200000"]))
