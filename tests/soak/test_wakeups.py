"""How long it takes from zero node processes to an answer, with pilots and without, through the gateway."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Report
from tests.server import Server, running_server, until
from tests.soak.models import Model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

PARENT = "projects/soak/models/wakeups"
# Milliseconds, median.
LIMITS = {"scikit-learn": 120, "xgboost": 120, "tensorflow": 250}
FLAGS = ("--idle-timeout", "0.5", "--tick", "0.1")


def test_wake_up_times(tmp_path: Path, trained: Mapping[str, Model], report: Report) -> None:
    """Median of 20, and the share of it without pilots; every answer right."""
    with running_server(tmp_path / "pilots", *FLAGS) as server:
        forked = _wake_ups(server, trained, 20, report, "forked")
    with running_server(tmp_path / "cold", *FLAGS, "--pilots", "off") as server:
        cold = _wake_ups(server, trained, 5, report, "cold")
    for kind, seconds in forked.items():
        report(f"wake-up {kind}: forked/cold = 1/{cold[kind] / seconds:.0f}")
    for kind, limit in LIMITS.items():
        assert forked[kind] * 1000 <= limit, kind
    assert forked["tensorflow"] <= cold["tensorflow"] / 20


def _wake_ups(
    server: Server, trained: Mapping[str, Model], times: int, report: Report, how: str
) -> dict[str, float]:
    server.create_model(PARENT)
    medians = {}
    for kind, model in trained.items():
        name = f"{PARENT}/versions/{kind.replace('-', '_')}"
        server.create_version(name, deploymentUri=str(model.folder))
        if how == "forked":
            until(
                lambda: all(pilot["state"] == "lit" for pilot in server.get_status()["pilots"]),
                "pilots are lit",
            )
        seconds, timings = [], []
        for _ in range(times):
            until(lambda name=name: not server.nodes(name), "it sleeps")  # type: ignore[misc]
            start = time.perf_counter()
            reply = server.predict(name, model.instances)
            seconds.append(time.perf_counter() - start)
            assert _flat(reply.json["predictions"]) == pytest.approx(_flat(model.predictions), rel=1e-6)
            timings.append(reply.headers["server-timing"])
        medians[kind] = statistics.median(seconds)
        report(
            f"wake-up {kind}, {how}: median of {times} {medians[kind] * 1000:.0f} ms, "
            f"from {min(seconds) * 1000:.0f} to {max(seconds) * 1000:.0f}; last: {timings[-1]}"
        )
    return medians


def _flat(predictions: list[Any]) -> list[float]:
    """All numbers, without the names of outputs: the library itself differs in the last places."""
    named = (row["scores"] if isinstance(row, dict) else row for row in predictions)
    return [float(value) for row in named for value in np.ravel(row)]
