"""Studies and trials as clients send them.

Field names and types follow the discovery document `ml.v1.json`; a test holds the structs against it. Answers
are rendered from the records of `tuning.study`: unlike other resources they have zeros written out.
Source: sections 3.1 and 3.3 of the reference on training and tuning.
"""

from __future__ import annotations

from serving.resources import NumberText, Resource


class StudyMetricSpec(Resource, frozen=True):
    """A metric that the study optimizes."""

    goal: str = ""
    metric: str = ""


class DoubleValueSpec(Resource, frozen=True):
    """Bounds, both included."""

    max_value: float = 0.0
    min_value: float = 0.0


class IntegerValueSpec(Resource, frozen=True):
    """Bounds, both included."""

    max_value: NumberText = ""
    min_value: NumberText = ""


class CategoricalValueSpec(Resource, frozen=True):
    """Texts to choose from."""

    values: tuple[str, ...] = ()


class DiscreteValueSpec(Resource, frozen=True):
    """Increasing numbers to choose from."""

    values: tuple[float, ...] = ()


class ParentCategoricalValueSpec(CategoricalValueSpec, frozen=True):
    """Values of a CATEGORICAL parent with which a child is active."""


class ParentDiscreteValueSpec(DiscreteValueSpec, frozen=True):
    """Values of a DISCRETE parent with which a child is active."""


class ParentIntValueSpec(Resource, frozen=True):
    """Values of an INTEGER parent with which a child is active."""

    values: tuple[NumberText, ...] = ()


class StudyParameterSpec(Resource, frozen=True):
    """A parameter, with one of the value specs; in a child also one of the parent's values."""

    categorical_value_spec: CategoricalValueSpec | None = None
    child_parameter_specs: tuple[StudyParameterSpec, ...] = ()
    discrete_value_spec: DiscreteValueSpec | None = None
    double_value_spec: DoubleValueSpec | None = None
    integer_value_spec: IntegerValueSpec | None = None
    parameter: str = ""
    parent_categorical_values: ParentCategoricalValueSpec | None = None
    parent_discrete_values: ParentDiscreteValueSpec | None = None
    parent_int_values: ParentIntValueSpec | None = None
    scale_type: str = ""
    type: str = ""


class DecayCurveStoppingConfig(Resource, frozen=True):
    """Whether the rule goes by elapsed time instead of steps."""

    use_elapsed_time: bool = False


class MedianStoppingConfig(Resource, frozen=True):
    """Whether the rule goes by elapsed time instead of steps."""

    use_elapsed_time: bool = False


class AutomatedStoppingConfig(Resource, frozen=True):
    """At most one rule of early stopping."""

    decay_curve_stopping_config: DecayCurveStoppingConfig | None = None
    median_automated_stopping_config: MedianStoppingConfig | None = None


class StudyConfig(Resource, frozen=True):
    """What is optimized, over which parameters, and how."""

    algorithm: str = ""
    automated_stopping_config: AutomatedStoppingConfig | None = None
    metrics: tuple[StudyMetricSpec, ...] = ()
    parameters: tuple[StudyParameterSpec, ...] = ()


class StudyBody(Resource, frozen=True):
    """A new study; all but the configuration is accepted and ignored."""

    create_time: str = ""
    inactive_reason: str = ""
    name: str = ""
    state: str = ""
    study_config: StudyConfig | None = None


class Duration(Resource, frozen=True):
    """google.protobuf.Duration as an object, as some clients send it in place of a text."""

    nanos: int = 0
    seconds: NumberText = ""


class MeasuredMetric(Resource, frozen=True):
    """The value of a metric."""

    metric: str = ""
    value: float = 0.0


class MeasurementBody(Resource, frozen=True):
    """What was measured of a trial after a number of steps, or after some time, as in "3.5s"."""

    elapsed_time: str | Duration = ""
    metrics: tuple[MeasuredMetric, ...] = ()
    step_count: NumberText = ""


class TrialParameter(Resource, frozen=True):
    """The value of a parameter."""

    float_value: float | None = None
    int_value: NumberText = ""
    parameter: str = ""
    string_value: str | None = None


class TrialBody(Resource, frozen=True):
    """A trial that a client adds; names, times, the client and measurements are accepted and ignored."""

    client_id: str = ""
    end_time: str = ""
    final_measurement: MeasurementBody | None = None
    infeasible_reason: str = ""
    measurements: tuple[MeasurementBody, ...] = ()
    name: str = ""
    parameters: tuple[TrialParameter, ...] = ()
    start_time: str = ""
    state: str = ""
    trial_infeasible: bool = False


class SuggestTrialsRequest(Resource, frozen=True):
    client_id: str = ""
    suggestion_count: int = 0


class AddTrialMeasurementRequest(Resource, frozen=True):
    measurement: MeasurementBody | None = None


class CompleteTrialRequest(Resource, frozen=True):
    final_measurement: MeasurementBody | None = None
    infeasible_reason: str = ""
    trial_infeasible: bool = False
