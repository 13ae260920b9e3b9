"""Trials whose supervisor is forked from a pilot."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from autoscaler.node_process import LaunchSpec
from autoscaler.pools import PilotSpec
from autoscaler.pools.local_pool import LocalPool
from autoscaler.supervision import Supervisor
from tests.training.jobs import read_log
from tests.training.test_forked_replicas import PRELOADED, make_request
from tests.training.trials.tuning_runs import MASTER, TAG, write_order
from training.messages import (
    FinishTrials,
    StartTrial,
    TrainingPhase,
    TrainingReport,
    TrainingRequest,
    TrialReport,
    TrialSettings,
)

SOURCE = """
    import sys
    import hypertune

    print("preloaded", "tests.training.preloaded" in sys.modules)
    hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", 0.5, 1)
    print("done", file=sys.stderr)
"""


async def run_one_trial(request: TrainingRequest, orders: Path, output: Path) -> list[TrainingReport]:
    """Run a tuning job of one trial in a fork of a pilot; returns what it has reported."""
    spec = PilotSpec("test", ("training.supervisor", PRELOADED), dict(os.environ))
    launch = LaunchSpec(
        "training.supervisor:start",
        {"request": msgspec.to_builtins(request)},
        dict(os.environ),
        watches_lifeline=True,
    )
    reports = []
    async with Supervisor() as tasks:
        pool = LocalPool(lambda _: None, drain=1.0, supervisor=tasks, starts=1)
        with output.open("wb") as file:
            async with pool:
                pool.set_wanted_pilots([spec])
                await pool.wait_for_pilots(60.0)
                async with pool.run_forked(spec, launch, output=file.fileno(), grace_seconds=20) as child:
                    assert child is not None
                    async for line in child.output:
                        report = msgspec.json.decode(line, type=TrainingReport)
                        reports.append(report)
                        if report.phase is TrainingPhase.RUNNING:
                            write_order(orders, StartTrial(1, ()))
                        if report.trial is not None and report.trial.ended:
                            write_order(orders, FinishTrials())
                        if report.done or report.failed:
                            return reports
    raise AssertionError("it ended without a result")


def test_trials_print(tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    settings = TrialSettings(metric_tag=TAG, slots=(MASTER,), orders=str(orders))
    request = make_request(tmp_path, SOURCE, trials=settings)
    reports = asyncio.run(run_one_trial(request, orders, tmp_path / "output"))

    (end,) = [report.trial for report in reports if report.trial is not None and report.trial.ended]
    assert isinstance(end, TrialReport)
    assert (end.failure, end.final is not None and end.final.value) == ("", 0.5)
    lines = [entry.text for entry in read_log(tmp_path / "log") if entry.task == "master-replica-0"]
    assert lines == ["preloaded True", "done"]
    assert (tmp_path / "output").read_text() == ""
