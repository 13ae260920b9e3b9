"""What reports make of a trial."""

from __future__ import annotations

import msgspec

from serving.gateway.jobs.kinds.training.trials.trial_results import (
    apply_report,
    conclude_stopped,
    fail_trial,
    stop_trial,
)
from training.messages import MetricPoint, TrialReport
from tuning.study import Measurement, Trial, TrialState

TRIAL = Trial(number=3, parameters={"rate": 0.5}, started_at=10.0)
POINT = MetricPoint(1, 0.25, 2.0)


def test_points_are_measurements_of_an_open_trial() -> None:
    trial = apply_report(TRIAL, TrialReport(3, (POINT, MetricPoint(2, 0.5, 3.0))), "loss", 20.0)

    assert trial.state is TrialState.ACTIVE
    assert trial.measurements == (Measurement(1, 2.0, {"loss": 0.25}), Measurement(2, 3.0, {"loss": 0.5}))


def test_a_final_value_completes_it() -> None:
    trial = apply_report(TRIAL, TrialReport(3, ended=True, final=POINT), "loss", 20.0)

    assert trial.is_completed
    assert trial.final == Measurement(1, 2.0, {"loss": 0.25})
    assert (trial.ended_at, trial.infeasible) == (20.0, False)


def test_a_failure_makes_it_infeasible_with_its_reason() -> None:
    trial = apply_report(TRIAL, TrialReport(3, ended=True, failure="no memory"), "loss", 20.0)

    assert (trial.is_completed, trial.infeasible, trial.infeasible_reason) == (True, True, "no memory")


def test_a_lost_trial_stays_open_and_counts_it() -> None:
    trial = apply_report(TRIAL, TrialReport(3, ended=True, lost=True), "loss", 20.0)

    assert (trial.state, trial.attempts) == (TrialState.ACTIVE, 1)


def test_a_completed_trial_does_not_change() -> None:
    completed = fail_trial(TRIAL, "first", 15.0)

    assert apply_report(completed, TrialReport(3, ended=True, final=POINT), "loss", 20.0) == completed


def test_of_a_trial_that_was_being_stopped_the_last_value_counts() -> None:
    stopping = stop_trial(apply_report(TRIAL, TrialReport(3, (POINT,)), "loss", 20.0))
    concluded = conclude_stopped(stopping, 30.0)

    assert concluded.final == Measurement(1, 2.0, {"loss": 0.25})
    assert concluded.stopped_early
    assert conclude_stopped(stop_trial(TRIAL), 30.0).infeasible


def test_what_is_stored_reads_back() -> None:
    trial = apply_report(TRIAL, TrialReport(3, (POINT,), ended=True, final=POINT), "loss", 20.0)

    assert msgspec.json.decode(msgspec.json.encode(trial), type=Trial) == trial
