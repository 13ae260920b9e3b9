"""Reads the tuning part of a new training job; each error has the field, what is wrong, what to do."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from serving.errors import InvalidArgument, ServingError, field_error
from serving.gateway.catalog.study_checks import ALGORITHMS, GOALS, SCALES
from serving.names import check_job_id
from serving.resources import HyperparameterSpec, ParameterSpec
from tuning.decide import TuningPlan
from tuning.space import MAX_DISCRETE_VALUES, Parameter, ParameterKind, Scale, SearchSpace, format_value
from tuning.study import Algorithm, Metric, StoppingRule, Study

T = TypeVar("T")

MAX_TRIALS = 1000
# What a program reports that names no tag.
DEFAULT_TAG = "training/hptuning/metric"
_MAX_PARAMETERS, _MAX_VALUES, _MAX_TEXT_LENGTH = 200, 1000, 1000
_EXACT_INTEGER = 2**53
# The order that starts a trial is a line of at most 64 KiB, and several of them have room in its pipe.
_MAX_ARGUMENT_BYTES = 32 << 10
_LONGEST_NUMBER = "-1.7976931348623157e+308"
# Names become arguments, --NAME=VALUE.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_JOB_FOLDER = ("job-dir", "job_dir")

_TYPES: Mapping[str, ParameterKind] = {str(kind): kind for kind in ParameterKind}
# A scale that jobs have and studies have not.
_SCALES: Mapping[str, Scale] = {"NONE": Scale.LINEAR, **SCALES}


def read_study(given: HyperparameterSpec) -> Study:
    """The study of a tuning job, without its uid. Raises InvalidArgument with the field."""
    parameters = _read_parameters(given.params)
    algorithm = _choose(ALGORITHMS, given.algorithm, "algorithm")
    if algorithm is Algorithm.GRID_SEARCH:
        for place, parameter in enumerate(parameters):
            if parameter.kind is ParameterKind.DOUBLE:
                raise _error(
                    f"params[{place}].type",
                    "GRID_SEARCH cannot try all values of a DOUBLE. Make it DISCRETE, with those to try.",
                )
    return Study(
        uid="",
        space=SearchSpace(parameters),
        metrics=(Metric(find_metric_tag(given), _choose(GOALS, given.goal, "goal")),),
        algorithm=algorithm,
        stopping_rule=StoppingRule.MEDIAN if given.enable_trial_early_stopping else StoppingRule.NONE,
    )


def read_plan(given: HyperparameterSpec) -> TuningPlan:
    """The limits of a tuning job. Raises InvalidArgument with the field."""
    for field in ("max_trials", "max_parallel_trials", "max_failed_trials"):
        if getattr(given, field) < 0:
            raise _error(field, f"It cannot be negative, as {getattr(given, field)} is.")
    if given.max_trials > MAX_TRIALS:
        raise _error("max_trials", f"At most {MAX_TRIALS} can be asked for, not {given.max_trials}.")
    trials = given.max_trials or 1
    parallel = min(given.max_parallel_trials or 1, trials)
    return TuningPlan(max_trials=trials, max_parallel=parallel, max_failed=given.max_failed_trials)


def check_tuning(given: HyperparameterSpec) -> None:
    """Raises InvalidArgument with the field."""
    read_study(given)
    read_plan(given)
    if given.resume_previous_job_id:
        try:
            check_job_id(given.resume_previous_job_id, "")
        except InvalidArgument as error:
            raise _error("resume_previous_job_id", error.message) from error


def find_metric_tag(given: HyperparameterSpec) -> str:
    tag = given.hyperparameter_metric_tag or DEFAULT_TAG
    if len(tag) > _MAX_TEXT_LENGTH or "\0" in tag:
        raise _error(
            "hyperparameter_metric_tag",
            f"It has more than {_MAX_TEXT_LENGTH} characters, or a NUL character.",
        )
    return tag


def _read_parameters(given: Sequence[ParameterSpec]) -> tuple[Parameter, ...]:
    if not given:
        raise _error("params", "Give at least one parameter to tune.")
    if len(given) > _MAX_PARAMETERS:
        raise _error("params", f"At most {_MAX_PARAMETERS} can be tuned, not {len(given)}.")
    seen: set[str] = set()
    for place, spec in enumerate(given):
        _check_name(spec.parameter_name, seen, f"params[{place}].parameter_name")
        seen.add(spec.parameter_name)
    parameters = tuple(_read_parameter(spec, f"params[{place}]") for place, spec in enumerate(given))
    longest = sum(_count_longest_argument(parameter) for parameter in parameters)
    if longest > _MAX_ARGUMENT_BYTES:
        raise _error(
            "params",
            f"The arguments of a trial could have {longest} bytes, more than {_MAX_ARGUMENT_BYTES}. "
            "Shorten names or values.",
        )
    return parameters


def _count_longest_argument(parameter: Parameter) -> int:
    """Bytes of --NAME=VALUE with the longest value, as it is sent to the supervisor."""
    texts = [format_value(value) for value in parameter.values] or [_LONGEST_NUMBER]
    return max(len(msgspec.json.encode(f"--{parameter.name}={text}")) + 1 for text in texts)


def _check_name(name: str, seen: set[str], field: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _MAX_TEXT_LENGTH:
        raise _error(
            field, f"{name!r} is no name of an argument (--NAME=VALUE): letters, digits, '_', '-' and '.'."
        )
    if name in _JOB_FOLDER:
        raise _error(field, f"--{name} is the folder of the trial. Choose another name.")
    if name in seen:
        raise _error(field, f"There is another parameter {name!r}.")


def _read_parameter(spec: ParameterSpec, field: str) -> Parameter:
    kind = _choose(_TYPES, spec.type, f"{field}.type")
    scale = _choose(_SCALES, spec.scale_type, f"{field}.scale_type")
    match kind:
        case ParameterKind.CATEGORICAL:
            return _read_categories(spec, scale, field)
        case ParameterKind.DISCRETE:
            return _read_discrete(spec, scale, field)
        case _:
            return _read_range(spec, kind, scale, field)


def _read_categories(spec: ParameterSpec, scale: Scale, field: str) -> Parameter:
    values = spec.categorical_values
    _check_count(values, f"{field}.categorical_values")
    if len(set(values)) < len(values):
        raise _error(f"{field}.categorical_values", "A value is there twice.")
    if any(len(value) > _MAX_TEXT_LENGTH or "\0" in value for value in values):
        raise _error(
            f"{field}.categorical_values",
            f"A value has more than {_MAX_TEXT_LENGTH} characters, or a NUL character.",
        )
    for name in ("discrete_values", "min_value", "max_value"):
        if getattr(spec, name):
            raise _error(f"{field}.{name}", "A CATEGORICAL parameter has categoricalValues, and no others.")
    if scale is not Scale.LINEAR:
        raise _error(f"{field}.scale_type", "A CATEGORICAL parameter has no scale. Leave it out.")
    return Parameter(name=spec.parameter_name, kind=ParameterKind.CATEGORICAL, values=values)


def _read_discrete(spec: ParameterSpec, scale: Scale, field: str) -> Parameter:
    """Bounds are ignored."""
    values = spec.discrete_values
    _check_count(values, f"{field}.discrete_values")
    _refuse_values(spec.categorical_values, f"{field}.categorical_values", "DISCRETE")
    if not all(map(math.isfinite, values)):
        raise _error(f"{field}.discrete_values", "All must be finite numbers.")
    for low, high in itertools.pairwise(values):
        if low >= high:
            raise _error(
                f"{field}.discrete_values", f"They must increase, and {low:g} is followed by {high:g}."
            )
    _check_scale(scale, values[0], field)
    return Parameter(name=spec.parameter_name, kind=ParameterKind.DISCRETE, scale=scale, values=values)


def _read_range(spec: ParameterSpec, kind: ParameterKind, scale: Scale, field: str) -> Parameter:
    low, high = spec.min_value, spec.max_value
    _refuse_values(spec.categorical_values, f"{field}.categorical_values", kind)
    _refuse_values(spec.discrete_values, f"{field}.discrete_values", kind)
    for name, value in (("min_value", low), ("max_value", high)):
        if not math.isfinite(value):
            raise _error(f"{field}.{name}", "It must be a finite number.")
        if kind is ParameterKind.INTEGER and not (value.is_integer() and abs(value) <= _EXACT_INTEGER):
            raise _error(f"{field}.{name}", f"An INTEGER needs a whole number up to 2^53, and not {value!r}.")
    if low > high:
        raise _error(f"{field}.max_value", f"It must not be below minValue, as {high:g} is below {low:g}.")
    _check_scale(scale, low, field)
    minimum, maximum = (int(low), int(high)) if kind is ParameterKind.INTEGER else (low, high)
    return Parameter(name=spec.parameter_name, kind=kind, scale=scale, minimum=minimum, maximum=maximum)


def _check_count(values: Sequence[object], field: str) -> None:
    most = min(_MAX_VALUES, MAX_DISCRETE_VALUES)
    if not 1 <= len(values) <= most:
        raise _error(field, f"Give from 1 to {most} values, not {len(values)}.")


def _refuse_values(values: Sequence[object], field: str, kind: str) -> None:
    if values:
        raise _error(field, f"A parameter of type {kind} has none.")


def _check_scale(scale: Scale, lowest: float, field: str) -> None:
    if scale is not Scale.LINEAR and lowest <= 0:
        raise _error(
            f"{field}.scale_type", f"A logarithmic scale needs values above 0, and {lowest:g} is the lowest."
        )


def _choose(choices: Mapping[str, T], text: str, field: str) -> T:
    """Names of the API are read in any case."""
    try:
        return choices[text.upper()]
    except KeyError:
        known = ", ".join(name for name in choices if name)
        raise _error(field, f"{text!r} is none of {known}.") from None


def _error(field: str, description: str) -> ServingError:
    return field_error(InvalidArgument, f"training_input.hyperparameters.{field}", description)
