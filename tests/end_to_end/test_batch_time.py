"""How long a small batch prediction takes, from its submission to its end."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from tests.bounds import JOB_SECONDS
from tests.conftest import Report
from tests.end_to_end import jobs, models
from tests.server import running_server, until

pytestmark = pytest.mark.alone


def test_a_small_job_takes_seconds(tmp_path: Path, report: Report) -> None:
    """100 records on a server that has nothing else to do, through all states in their order."""
    import xgboost as xgb

    booster = models.write_xgboost(tmp_path / "model")
    rows = (models.data()[0].tolist() * 2)[:100]
    file = jobs.write_lines(tmp_path / "rows.jsonl", rows)
    body = jobs.job("quick", str(file), tmp_path / "out", uri=str(tmp_path / "model"))
    with running_server(tmp_path / "state") as server:
        start = time.perf_counter()
        name = jobs.submit(server, body)
        states = []

        def ended() -> bool:
            states.append(jobs.get(server, name)["state"])
            return states[-1] in jobs.ENDS

        until(ended, "the job has ended", seconds=JOB_SECONDS)
        seconds = time.perf_counter() - start

        jobs.check_nothing_is_left(server, tmp_path / "out")
        assert server.stop() == 0
    report(f"batch prediction of 100 records, submission to SUCCEEDED: {seconds:.1f} s")
    assert list(dict.fromkeys(states))[-3:] == ["PREPARING", "RUNNING", "SUCCEEDED"]
    wanted = booster.predict(xgb.DMatrix(np.array(rows))).tolist()
    assert jobs.results(tmp_path / "out") == pytest.approx(wanted, rel=1e-6)
    assert seconds <= 12
