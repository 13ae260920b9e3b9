"""Reads studies, trials and measurements that clients sent; each error says what is wrong and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypeVar

from serving.errors import InvalidArgument, ServingError, field_error
from serving.study_resources import (
    AutomatedStoppingConfig,
    CategoricalValueSpec,
    DiscreteValueSpec,
    DoubleValueSpec,
    Duration,
    IntegerValueSpec,
    MeasurementBody,
    ParentIntValueSpec,
    StudyConfig,
    StudyMetricSpec,
    StudyParameterSpec,
    TrialBody,
    TrialParameter,
)
from tuning.space import (
    Parameter,
    ParameterKind,
    Scale,
    SearchSpace,
    Value,
    check_point,
    check_space,
    count_points,
)
from tuning.study import Algorithm, Goal, Measurement, Metric, StoppingRule, Study

T = TypeVar("T")

# Bounds of one study, in its parameters (children included), its metrics, and the values of a parameter.
MAX_PARAMETERS, MAX_METRICS, MAX_VALUES = 200, 20, 1000
# Bytes of names and values of the parameters of one trial.
MAX_POINT_BYTES = 1 << 16
MAX_NAME_LENGTH, MAX_REASON_LENGTH = 256, 4096
_INT64 = 1 << 63
_MAX_DIGITS = 20
_INTEGER = re.compile(r"[+-]?[0-9]+(\.0+)?")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s")

_CONFIG = "study.study_config"
SCALES: Mapping[str, Scale] = {
    "": Scale.LINEAR,
    "SCALE_TYPE_UNSPECIFIED": Scale.LINEAR,
    "UNIT_LINEAR_SCALE": Scale.LINEAR,
    "UNIT_LOG_SCALE": Scale.LOG,
    "UNIT_REVERSE_LOG_SCALE": Scale.REVERSE_LOG,
}
GOALS: Mapping[str, Goal] = {
    "": Goal.MAXIMIZE,
    "GOAL_TYPE_UNSPECIFIED": Goal.MAXIMIZE,
    "MAXIMIZE": Goal.MAXIMIZE,
    "MINIMIZE": Goal.MINIMIZE,
}
ALGORITHMS: Mapping[str, Algorithm] = {
    "": Algorithm.GAUSSIAN_PROCESS_BANDIT,
    "ALGORITHM_UNSPECIFIED": Algorithm.GAUSSIAN_PROCESS_BANDIT,
    **{str(one): one for one in Algorithm},
}
_VALUE_SPECS: Mapping[ParameterKind, str] = {
    ParameterKind.DOUBLE: "double_value_spec",
    ParameterKind.INTEGER: "integer_value_spec",
    ParameterKind.CATEGORICAL: "categorical_value_spec",
    ParameterKind.DISCRETE: "discrete_value_spec",
}
_PARENT_VALUES = ("parent_categorical_values", "parent_discrete_values", "parent_int_values")


# ---- studies


def read_study(config: StudyConfig | None) -> Study:
    """A study without its uid. Raises InvalidArgument with the field."""
    if config is None or not config.parameters:
        raise _config_error("parameters", "Give at least one parameter.")
    if len(list(_iter_specs(config.parameters))) > MAX_PARAMETERS:
        raise _config_error("parameters", f"At most {MAX_PARAMETERS} parameters can be given.")
    field = f"{_CONFIG}.parameters"
    parameters = tuple(
        _read_parameter(spec, f"{field}[{place}]") for place, spec in enumerate(config.parameters)
    )
    space = SearchSpace(parameters)
    try:
        check_space(space)
    except InvalidArgument as error:
        raise field_error(InvalidArgument, field, error.message) from error
    if _measure_largest_point(space) > MAX_POINT_BYTES:
        raise _config_error(
            "parameters",
            f"The names of all parameters with the longest value of each take more than "
            f"{MAX_POINT_BYTES >> 10} KiB, which every trial would: shorten them.",
        )
    rule, use_elapsed_time = _read_stopping(config.automated_stopping_config)
    return Study(
        uid="",
        space=space,
        metrics=_read_metrics(config.metrics),
        algorithm=_read_algorithm(config.algorithm, space),
        stopping_rule=rule,
        use_elapsed_time=use_elapsed_time,
    )


def _measure_largest_point(space: SearchSpace) -> int:
    """Bytes of the texts that a trial may have."""
    return sum(
        len(parameter.name.encode())
        + max((len(str(value).encode()) for value in parameter.values), default=0)
        for parameter in space.list_all()
    )


def _iter_specs(specs: Sequence[StudyParameterSpec]) -> Iterator[StudyParameterSpec]:
    for spec in specs:
        yield spec
        yield from _iter_specs(spec.child_parameter_specs)


def _read_metrics(specs: Sequence[StudyMetricSpec]) -> tuple[Metric, ...]:
    if not 0 < len(specs) <= MAX_METRICS:
        raise _config_error("metrics", f"Give the metric to optimize, or several, at most {MAX_METRICS}.")
    metrics = []
    for place, spec in enumerate(specs):
        field = f"{_CONFIG}.metrics[{place}]"
        name = _check_name(spec.metric, f"{field}.metric")
        metrics.append(Metric(name, _choose(GOALS, spec.goal, f"{field}.goal")))
    if len({metric.name for metric in metrics}) < len(metrics):
        raise _config_error("metrics", "Each metric can be given once.")
    return tuple(metrics)


def _read_algorithm(text: str, space: SearchSpace) -> Algorithm:
    algorithm = _choose(ALGORITHMS, text, f"{_CONFIG}.algorithm")
    if algorithm is Algorithm.GRID_SEARCH and count_points(space) is None:
        raise _config_error(
            "algorithm", "GRID_SEARCH takes no parameters of type DOUBLE; make them DISCRETE."
        )
    return algorithm


def _read_stopping(config: AutomatedStoppingConfig | None) -> tuple[StoppingRule, bool]:
    """The rule of early stopping, and whether it goes by elapsed time."""
    config = config or AutomatedStoppingConfig()
    decay, median = config.decay_curve_stopping_config, config.median_automated_stopping_config
    if decay is not None and median is not None:
        raise _config_error("automated_stopping_config", "Give one of the two rules, not both.")
    if decay is not None:
        return StoppingRule.DECAY_CURVE, decay.use_elapsed_time
    if median is not None:
        return StoppingRule.MEDIAN, median.use_elapsed_time
    return StoppingRule.NONE, False


def _read_parameter(spec: StudyParameterSpec, field: str) -> Parameter:
    kind = _choose({str(one): one for one in ParameterKind}, spec.type, f"{field}.type")
    needed = _VALUE_SPECS[kind]
    for name in _VALUE_SPECS.values():
        if name != needed and getattr(spec, name) is not None:
            raise field_error(InvalidArgument, f"{field}.{name}", f"Parameters of type {kind} have none.")
    value_spec = getattr(spec, needed)
    if value_spec is None:
        raise field_error(InvalidArgument, f"{field}.{needed}", f"Parameters of type {kind} need one.")
    minimum, maximum = _read_bounds(value_spec, f"{field}.{needed}")
    return Parameter(
        name=_check_name(spec.parameter, f"{field}.parameter"),
        kind=kind,
        scale=_choose(SCALES, spec.scale_type, f"{field}.scale_type"),
        minimum=minimum,
        maximum=maximum,
        values=_read_values(value_spec, f"{field}.{needed}.values"),
        children=tuple(
            _read_parameter(child, f"{field}.child_parameter_specs[{place}]")
            for place, child in enumerate(spec.child_parameter_specs)
        ),
        parent_values=_read_parent_values(spec, field),
    )


def _read_bounds(spec: object, field: str) -> tuple[float, float]:
    match spec:
        case DoubleValueSpec():
            return spec.min_value, spec.max_value
        case IntegerValueSpec():
            return (
                _parse_integer(spec.min_value or "0", f"{field}.min_value"),
                _parse_integer(spec.max_value or "0", f"{field}.max_value"),
            )
    return 0, 0


def _read_values(spec: object, field: str) -> tuple[Value, ...]:
    match spec:
        case CategoricalValueSpec() | DiscreteValueSpec():
            values = spec.values
        case ParentIntValueSpec():
            values = tuple(_parse_integer(text, field) for text in spec.values)
        case _:
            return ()
    if len(values) > MAX_VALUES:
        raise field_error(InvalidArgument, field, f"At most {MAX_VALUES} values can be given.")
    return values


def _read_parent_values(spec: StudyParameterSpec, field: str) -> tuple[Value, ...]:
    given = [name for name in _PARENT_VALUES if getattr(spec, name) is not None]
    if len(given) > 1:
        raise field_error(
            InvalidArgument, f"{field}.{given[1]}", f"Give the parent's values once; {given[0]} has some."
        )
    return _read_values(getattr(spec, given[0]), f"{field}.{given[0]}.values") if given else ()


# ---- trials and measurements


def read_point(space: SearchSpace, body: TrialBody) -> dict[str, Value]:
    """The point of a trial. Raises InvalidArgument with the field."""
    kinds = {parameter.name: parameter.kind for parameter in space.list_all()}
    point: dict[str, Value] = {}
    for place, given in enumerate(body.parameters):
        field = f"trial.parameters[{place}]"
        if given.parameter in point:
            raise field_error(InvalidArgument, field, f'"{given.parameter}" is there twice.')
        point[given.parameter] = _read_value(given, kinds.get(given.parameter), field)
    try:
        check_point(space, point)
    except InvalidArgument as error:
        raise field_error(InvalidArgument, "trial.parameters", error.message) from error
    return point


def _read_value(given: TrialParameter, kind: ParameterKind | None, field: str) -> Value:
    """The value that was sent, as a number of the parameter's kind if it is one."""
    values: list[Value] = [one for one in (given.float_value, given.string_value) if one is not None]
    values += [_parse_integer(given.int_value, f"{field}.int_value")] if given.int_value else []
    if len(values) != 1:
        raise field_error(InvalidArgument, field, "Give exactly one of floatValue, intValue and stringValue.")
    value = values[0]
    if isinstance(value, int) and kind in (ParameterKind.DOUBLE, ParameterKind.DISCRETE):
        return float(value)
    if isinstance(value, float) and kind is ParameterKind.INTEGER and value.is_integer():
        return int(value)
    return value


def read_measurement(body: MeasurementBody | None, field: str) -> Measurement:
    """Raises InvalidArgument with the field."""
    if body is None or not body.metrics:
        raise field_error(InvalidArgument, f"{field}.metrics", "Say which metric has which value.")
    if len(body.metrics) > MAX_METRICS:
        raise field_error(InvalidArgument, f"{field}.metrics", f"At most {MAX_METRICS} can be given.")
    values: dict[str, float] = {}
    for place, one in enumerate(body.metrics):
        name = _check_name(one.metric, f"{field}.metrics[{place}].metric")
        if name in values:
            raise field_error(InvalidArgument, f"{field}.metrics[{place}]", f'"{name}" is there twice.')
        if not math.isfinite(one.value):
            raise field_error(
                InvalidArgument,
                f"{field}.metrics[{place}].value",
                "It must be a finite number. A trial without one can be completed with trialInfeasible.",
            )
        values[name] = one.value
    step = _parse_integer(body.step_count or "0", f"{field}.step_count")
    if step < 0:
        raise field_error(InvalidArgument, f"{field}.step_count", f"It cannot be negative; {step} is.")
    return Measurement(step, _read_duration(body.elapsed_time, f"{field}.elapsed_time"), values)


def _read_duration(given: Duration | str, field: str) -> float:
    """Seconds; 0 if left out."""
    if isinstance(given, Duration):
        seconds = _parse_integer(given.seconds or "0", f"{field}.seconds") + given.nanos / 1e9
        if seconds < 0:
            raise field_error(InvalidArgument, field, "It cannot be negative.")
        return seconds
    if not given:
        return 0.0
    found = _DURATION.fullmatch(given)
    if found is None:
        raise field_error(InvalidArgument, field, f"{given!r} is no duration in seconds like 3.5s.")
    return float(Decimal(found[1]))


def check_client_id(client_id: str) -> str:
    """Raises InvalidArgument."""
    return _check_name(client_id, "client_id")


def _check_name(text: str, field: str) -> str:
    if not 0 < len(text) <= MAX_NAME_LENGTH or not text.isprintable():
        raise field_error(
            InvalidArgument, field, f"Give a text of at most {MAX_NAME_LENGTH} characters, all printable."
        )
    return text


def _choose(known: Mapping[str, T], text: str, field: str) -> T:
    found = known.get(text.upper())
    if found is None:
        names = ", ".join(name for name in known if name and not name.endswith("_UNSPECIFIED"))
        raise field_error(InvalidArgument, field, f"Choose from {names}; {text or 'nothing'!r} is not one.")
    return found


def _parse_integer(text: str, field: str) -> int:
    """An int64; some clients send whole floats."""
    digits = text.partition(".")[0]
    if not _INTEGER.fullmatch(text) or len(digits) > _MAX_DIGITS or not -_INT64 <= int(digits) < _INT64:
        raise field_error(InvalidArgument, field, f"{text[:40]!r} is no whole number of 64 bits.")
    return int(digits)


def _config_error(field: str, description: str) -> ServingError:
    return field_error(InvalidArgument, f"{_CONFIG}.{field}", description)
