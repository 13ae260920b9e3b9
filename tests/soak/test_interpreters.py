"""What it costs that another interpreter computes a model: here the same one, so that only that differs."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import joblib
import pytest
from sklearn.linear_model import LogisticRegression

from serving.runtimes import ExternalInterpreter, LoadSpec, load_model
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from tests.conftest import Report
from tests.end_to_end import models
from tests.server import running_server, until
from tests.soak.models import Model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

PARENT = "projects/soak/models/interpreters"
OVERHEAD_LIMIT, WAKE_LIMIT = 120e-6, 0.150
ROUNDS, CALLS = 15, 500


def test_what_a_call_costs_more(tmp_path: Path, report: Report) -> None:
    """One row, from JSON to JSON, in turns with the same model in this process: medians."""
    x, y = models.data()
    joblib.dump(LogisticRegression().fit(x, y), tmp_path / "model.joblib")
    here = load_model(LoadSpec(tmp_path))
    there = load_model(LoadSpec(tmp_path, external=ExternalInterpreter(sys.executable)))
    body = f'{{"instances": [{x[0].tolist()}]}}'.encode()
    decoder = InstancesDecoder()

    def seconds(runtime: object) -> float:
        def call() -> None:
            batch, parameters = decoder.decode(body, runtime.input_format)  # type: ignore[attr-defined]
            encode_predictions(runtime.predict(batch, **parameters))  # type: ignore[attr-defined]

        return statistics.median(_timed(call) for _ in range(CALLS))

    pairs = [(seconds(here), seconds(there)) for _ in range(ROUNDS)]
    overhead = statistics.median(there - here for here, there in pairs)

    mine, theirs = (statistics.median(column) * 1e6 for column in zip(*pairs, strict=True))
    report(f"one row: here {mine:.0f} us, by a predictor {theirs:.0f} us, {overhead * 1e6:.0f} us more")
    there.close()  # type: ignore[attr-defined]
    assert overhead <= OVERHEAD_LIMIT


def test_how_long_a_wake_up_takes(tmp_path: Path, trained: Mapping[str, Model], report: Report) -> None:
    """From no process to an answer, with a pilot of that interpreter: the median of 20."""
    model = trained["scikit-learn"]
    flags = ("--idle-timeout", "0.5", "--tick", "0.1", "--runtime", f"1.15={sys.executable}")
    with running_server(tmp_path / "state", *flags) as server:
        server.create_model(PARENT)
        found = {}
        for name, asked in {"here": {}, "there": {"runtimeVersion": "1.15"}}.items():
            version = f"{PARENT}/versions/{name}"
            server.create_version(version, deploymentUri=str(model.folder), **asked)
            until(
                lambda: all(one["state"] == "lit" for one in server.get_status()["pilots"]), "pilots are lit"
            )
            seconds = []
            for _ in range(20):
                until(lambda version=version: not server.nodes(version), "it sleeps")  # type: ignore[misc]
                seconds.append(_timed(lambda version=version: server.predict(version, model.instances)))  # type: ignore[misc]
            found[name] = statistics.median(seconds)

    report(f"wake-up: here {found['here'] * 1e3:.0f} ms, by a predictor {found['there'] * 1e3:.0f} ms")
    assert found["there"] <= WAKE_LIMIT


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
