"""Studies, trials and operations on them as answers have them.

Numbers are written out when they are 0, against the rule for other resources: clients look for the field.
Source: section 3 of the reference on training and tuning.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from serving.gateway.state.study_records import StudyOperationRecord, StudyRecord, StudySnapshot
from serving.resources import format_timestamp
from tuning.space import Parameter, ParameterKind, Scale, Value
from tuning.study import Algorithm, Measurement, StoppingRule, Study, Trial

_TYPE_PREFIX = "type.googleapis.com/google.cloud.ml.v1."
_SCALES: Mapping[Scale, str] = {
    Scale.LOG: "UNIT_LOG_SCALE",
    Scale.REVERSE_LOG: "UNIT_REVERSE_LOG_SCALE",
}
_PARENT_VALUES: Mapping[ParameterKind, str] = {
    ParameterKind.CATEGORICAL: "parentCategoricalValues",
    ParameterKind.DISCRETE: "parentDiscreteValues",
    ParameterKind.INTEGER: "parentIntValues",
}
_STOPPING_RULES: Mapping[StoppingRule, str] = {
    StoppingRule.DECAY_CURVE: "decayCurveStoppingConfig",
    StoppingRule.MEDIAN: "medianAutomatedStoppingConfig",
}
_FLOAT_KINDS = (ParameterKind.DOUBLE, ParameterKind.DISCRETE)


# ---- studies


def render_study(record: StudyRecord) -> dict[str, Any]:
    return {
        "name": str(record.name),
        "studyConfig": _render_config(record.study),
        "state": record.state,
        "createTime": record.create_time,
    }


def _render_config(study: Study) -> dict[str, Any]:
    config: dict[str, Any] = {
        "metrics": [{"metric": metric.name, "goal": metric.goal} for metric in study.metrics],
        "parameters": [_render_spec(parameter, None) for parameter in study.space.parameters],
    }
    if study.algorithm is not Algorithm.GAUSSIAN_PROCESS_BANDIT:
        config["algorithm"] = study.algorithm
    if study.stopping_rule is not StoppingRule.NONE:
        rule = {"useElapsedTime": True} if study.use_elapsed_time else {}
        config["automatedStoppingConfig"] = {_STOPPING_RULES[study.stopping_rule]: rule}
    return config


def _render_spec(parameter: Parameter, parent: Parameter | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"parameter": parameter.name, "type": parameter.kind}
    match parameter.kind:
        case ParameterKind.DOUBLE:
            spec["doubleValueSpec"] = {"minValue": parameter.minimum, "maxValue": parameter.maximum}
        case ParameterKind.INTEGER:
            bounds = {"minValue": str(parameter.minimum), "maxValue": str(parameter.maximum)}
            spec["integerValueSpec"] = bounds
        case ParameterKind.CATEGORICAL:
            spec["categoricalValueSpec"] = {"values": parameter.values}
        case ParameterKind.DISCRETE:
            spec["discreteValueSpec"] = {"values": parameter.values}
    if parameter.scale in _SCALES:
        spec["scaleType"] = _SCALES[parameter.scale]
    if parent is not None:
        is_integer = parent.kind is ParameterKind.INTEGER
        values = [str(value) if is_integer else value for value in parameter.parent_values]
        spec[_PARENT_VALUES[parent.kind]] = {"values": values}
    if parameter.children:
        spec["childParameterSpecs"] = [_render_spec(child, parameter) for child in parameter.children]
    return spec


# ---- trials


class TrialRenderer:
    """Renders the trials of one study, also stored ones that do not fit its search space."""

    def __init__(self, record: StudyRecord) -> None:
        self._name = record.name
        self._kinds = {parameter.name: parameter.kind for parameter in record.study.space.list_all()}

    def render(self, trial: Trial) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": self._name.format_trial_name(trial.number),
            "state": trial.state,
            "parameters": [self._render_value(name, value) for name, value in trial.parameters.items()],
        }
        if trial.measurements:
            found["measurements"] = [_render_measurement(one) for one in trial.measurements]
        if trial.final is not None:
            found["finalMeasurement"] = _render_measurement(trial.final)
        if trial.infeasible:
            found["trialInfeasible"] = True
        texts = {
            "startTime": format_time(trial.started_at),
            "endTime": format_time(trial.ended_at),
            "clientId": trial.client_id,
            "infeasibleReason": trial.infeasible_reason,
        }
        return found | {name: text for name, text in texts.items() if text}

    def render_all(self, trials: Iterable[Trial]) -> dict[str, Any]:
        """The answer of methods that list trials."""
        rendered = [self.render(trial) for trial in trials]
        return {"trials": rendered} if rendered else {}

    def _render_value(self, name: str, value: Value) -> dict[str, Any]:
        if isinstance(value, str):
            return {"parameter": name, "stringValue": value}
        if isinstance(value, int) and self._kinds.get(name) not in _FLOAT_KINDS:
            return {"parameter": name, "intValue": str(value)}
        return {"parameter": name, "floatValue": float(value)}


def _render_measurement(measurement: Measurement) -> dict[str, Any]:
    return {
        "stepCount": str(measurement.step),
        "elapsedTime": f"{round(measurement.elapsed_seconds, 9):.9f}".rstrip("0").rstrip(".") + "s",
        "metrics": [{"metric": name, "value": value} for name, value in measurement.values.items()],
    }


# ---- operations


def render_study_operation(snapshot: StudySnapshot, operation: StudyOperationRecord) -> dict[str, Any]:
    """An operation as answers have it: its trials as they are now, those that were deleted left out."""
    kind, metadata, response = (
        _render_check(operation) if operation.checked_trial else _render_suggestion(snapshot, operation)
    )
    # The API's own name of this message has the spelling mistake.
    metadata_kind = f"{kind}Metatdata" if operation.checked_trial else f"{kind}Metadata"
    times = {
        "startTime": format_time(operation.created_at),
        "endTime": format_time(operation.ended_at),
    }
    return {
        "name": operation.name,
        "metadata": {
            "@type": _TYPE_PREFIX + metadata_kind,
            "study": str(operation.study),
            "createTime": times["startTime"],
            **metadata,
        },
        "done": True,
        "response": {"@type": f"{_TYPE_PREFIX}{kind}Response", **response, **times},
    }


def _render_check(operation: StudyOperationRecord) -> tuple[str, dict[str, Any], dict[str, Any]]:
    trial = operation.study.format_trial_name(operation.checked_trial)
    response = {"shouldStop": True} if operation.should_stop else {}
    return "CheckTrialEarlyStoppingState", {"trial": trial}, response


def _render_suggestion(
    snapshot: StudySnapshot, operation: StudyOperationRecord
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    found = (snapshot.find_trial(number) for number in operation.suggested)
    trials = TrialRenderer(snapshot.record).render_all(trial for trial in found if trial is not None)
    metadata = {"suggestionCount": operation.count, "clientId": operation.client_id}
    return "SuggestTrials", metadata, {**trials, "studyState": snapshot.record.state}


def format_time(seconds: float) -> str:
    """RFC 3339; "" for 0."""
    return format_timestamp(datetime.datetime.fromtimestamp(seconds, datetime.UTC)) if seconds else ""
