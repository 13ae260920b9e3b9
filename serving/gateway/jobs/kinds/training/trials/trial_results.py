"""What the reports of a trial's supervisor make of its record. Pure."""

from __future__ import annotations

import msgspec

from training.messages import MetricPoint, TrialReport
from tuning.study import Measurement, Trial, TrialState, add_measurement


def apply_report(trial: Trial, report: TrialReport, tag: str, now: float) -> Trial:
    """`now` is in seconds since 1970. A trial that was lost stays open, to be started again."""
    if trial.is_completed:
        return trial
    for point in report.points:
        trial = add_measurement(trial, _to_measurement(point, tag))
    if report.lost:
        return msgspec.structs.replace(trial, attempts=trial.attempts + 1)
    if not report.ended:
        return trial
    if report.final is None:
        return fail_trial(trial, report.failure, now)
    return msgspec.structs.replace(
        trial, state=TrialState.COMPLETED, final=_to_measurement(report.final, tag), ended_at=now
    )


def fail_trial(trial: Trial, reason: str, now: float) -> Trial:
    return msgspec.structs.replace(
        trial, state=TrialState.COMPLETED, infeasible=True, infeasible_reason=reason, ended_at=now
    )


def stop_trial(trial: Trial) -> Trial:
    return msgspec.structs.replace(trial, state=TrialState.STOPPING, stopped_early=True)


def conclude_stopped(trial: Trial, now: float) -> Trial:
    """Complete a trial that was being stopped when the server ended: its last value counts."""
    if not trial.measurements:
        return fail_trial(trial, "The trial was stopped before it had measured anything.", now)
    return msgspec.structs.replace(
        trial, state=TrialState.COMPLETED, final=trial.measurements[-1], ended_at=now
    )


def _to_measurement(point: MetricPoint, tag: str) -> Measurement:
    return Measurement(point.step, point.elapsed_seconds, {tag: point.value})
