"""Trials read from answers of the studies API, as rows of a table."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuning.optimal import find_sign
from tuning.space import Value
from tuning.study import Study


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial; `value` is None where it has none yet, or failed. `seconds` is how long it took."""

    number: int
    state: str
    value: float | None
    step: int
    parameters: Mapping[str, Value]
    seconds: float | None
    reason: str


def sort_rows(study: Study, rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Best first, then those that run, then those that failed."""
    sign = find_sign(study.metrics[0])
    ranks = {"FAILED": 2, "RUNNING": 1}

    def rank(row: TrialRow) -> tuple[int, float, int]:
        return ranks.get(row.state, 0), -sign * (row.value or 0.0), row.number

    return sorted(rows, key=rank)


def read_row(study: Study, trial: Mapping[str, Any]) -> TrialRow:
    metric = study.metrics[0].name
    measured = [*trial.get("measurements", ()), *filter(None, [trial.get("finalMeasurement")])]
    last = next((one for one in reversed(measured) if metric in _read_metrics(one)), None)
    is_failed = trial.get("trialInfeasible", False)
    return TrialRow(
        number=int(trial["name"].rpartition("/")[2]),
        state="FAILED" if is_failed else "SUCCEEDED" if trial["state"] == "COMPLETED" else "RUNNING",
        value=None if last is None or is_failed else _read_metrics(last)[metric],
        step=int(last.get("stepCount", 0)) if last is not None else 0,
        parameters={one["parameter"]: _read_value(one) for one in trial["parameters"]},
        seconds=_read_seconds(trial),
        reason=trial.get("infeasibleReason", ""),
    )


def read_curve(study: Study, trial: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The steps of a trial at which the first metric was measured, in order, with its values."""
    metric = study.metrics[0].name
    values = [(int(one["stepCount"]), _read_metrics(one)) for one in trial.get("measurements", ())]
    return [(step, metrics[metric]) for step, metrics in values if metric in metrics]


def _read_metrics(measurement: Mapping[str, Any]) -> dict[str, float]:
    return {one["metric"]: float(one["value"]) for one in measurement.get("metrics", ())}


def _read_value(parameter: Mapping[str, Any]) -> Value:
    if "floatValue" in parameter:
        return float(parameter["floatValue"])
    if "intValue" in parameter:
        return int(parameter["intValue"])
    return str(parameter["stringValue"])


def _read_seconds(trial: Mapping[str, Any]) -> float | None:
    if not trial.get("endTime"):
        return None
    begin, end = (datetime.datetime.fromisoformat(trial[field]) for field in ("startTime", "endTime"))
    return (end - begin).total_seconds()
