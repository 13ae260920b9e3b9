"""A runtime is one loaded model: the interface through which nodes and batch workers predict.

Each framework has a folder, with its record (`serving.frameworks`) and `load_model(LoadSpec) -> Runtime`. Its
library is imported in that folder only. This module imports nothing heavy: the records are below it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from serving.errors import LoadFailed
from serving.frameworks import Framework, import_object, list_selectable, load_frameworks

if TYPE_CHECKING:
    import numpy as np

    from serving.container_engine import ContainerRunConfig
    from serving.model_schema import ModelSchema
    from serving.runtimes.instance_batch import Batch


@dataclass(frozen=True, slots=True)
class RowsFormat:
    """Instances as plain Python values, just as JSON has them."""


@dataclass(frozen=True, slots=True)
class ArrayFormat:
    """Instances as one dense numeric array, row by row.

    `width` is the number of features of a row (None: any). The array is int64 when every number of
    the body is an integer, float64 otherwise; `nullable` says whether null (NaN) is a value the model
    takes, `allows_objects` whether `{"column": value}` instances are welcome too (they arrive as rows).
    """

    width: int | None
    nullable: bool
    allows_objects: bool = False


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One named input: `shape` is that of one instance (None: any size), `dtype` object means bytes.

    Where the shape is not `enforced` it is what the model says, and others may be answered too.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    enforced: bool = True


@dataclass(frozen=True, slots=True)
class ColumnsFormat:
    """Instances as one array per named input.

    A call takes exactly `fixed_rows` of them, None: any number. `independent_rows` says whether the model
    declares its rows to be independent; if not, requests do not share a call.
    """

    inputs: tuple[ColumnSpec, ...]
    fixed_rows: int | None = None
    independent_rows: bool = True


InputFormat = RowsFormat | ArrayFormat | ColumnsFormat


class Runtime(Protocol):
    """A loaded model, used from one thread at a time, or from `LoadSpec.concurrent_calls` of them.

    `predict` has the shape of AI Platform's own `Predictor.predict(instances, **kwargs)`, so the
    request's extra fields arrive as keyword arguments.
    """

    @property
    def framework(self) -> Framework: ...

    @property
    def mergeable(self) -> bool:
        """Whether rows are independent by construction, so that requests may share one call."""

    @property
    def exact(self) -> bool:
        """Whether regrouping rows must not change a single bit of the result (labels, trees)."""

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        """How the instances of a request with these parameters are to be parsed.

        Raises InvalidInputs when a parameter is not one the model knows.
        """

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the owner of the model should know, such as a pickle of another library version."""

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """One prediction per instance, in the same order: a list, an array, or named columns.

        Raises InvalidInputs for instances that do not fit, ModelFailed when the model raises, and
        InvalidOutputs when its answer cannot be sent.
        """

    def make_synthetic_rows(self, count: int) -> Batch | None:
        """Made-up instances to warm and to probe with, or None when none can be made."""

    def warmup_requests(self) -> Iterable[tuple[Batch, dict[str, Any]]]:
        """The recorded requests that came with the model: instances and parameters; often none."""

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """What it takes and answers, with an instance that it has been asked and what it answered.

        The first of `examples`, instances as JSON has them, that it answers is the one; where it answers none
        it tries some of its own making, if it knows what they must look like.
        """


@dataclass(frozen=True, slots=True)
class ExternalInterpreter:
    """Another interpreter that computes a model, in a predictor process; see `serving.runtimes.external`.

    `pilot` is the address of a process that has imported its libraries, "" if there is none. `on_start` is
    told the pid of the predictor. With `shared_fate` this process ends as the predictor ends.
    """

    interpreter: str
    pilot: str = ""
    on_start: Callable[[int], None] | None = None
    shared_fate: bool = False


@dataclass(frozen=True, slots=True)
class ModelContainer:
    """A container that serves a model; see `serving.runtimes.container`.

    `on_start` is told the pid of its first process, if that can be measured. With `shared_fate` this process
    ends as the container ends.
    """

    container: ContainerRunConfig
    on_start: Callable[[int], None] | None = None
    shared_fate: bool = False


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Where a model is loaded from: local folders only.

    `framework` is the name of one, or "" to detect it. `packages` are folders with installed user
    packages, looked up after the server's own. `prediction_class` is a custom routine's `module.Class`.
    `external`: another interpreter computes the model; `model_container`: a container does. `method` is the
    method of an estimator that answers instead of its `predict`.
    """

    model_dir: Path
    framework: str = ""
    prediction_class: str = ""
    packages: tuple[Path, ...] = ()
    threads: int = 1
    external: ExternalInterpreter | None = None
    model_container: ModelContainer | None = None
    method: str = ""

    @property
    def concurrent_calls(self) -> int:
        """How many calls the model takes at a time, each from a thread of its own."""
        return 1 if self.model_container is None else self.model_container.container.concurrency


def load_model(spec: LoadSpec) -> Runtime:
    """Load a model. Raises LoadFailed or InvalidUserCode with a sentence that says what to do."""
    return find_loader(spec)(spec)


def find_loader(spec: LoadSpec) -> Callable[[LoadSpec], Runtime]:
    """The function that loads such a model; imports its framework. Raises LoadFailed."""
    from serving.runtimes.framework_detection import detect_framework  # noqa: PLC0415  it imports this module

    if spec.model_container is not None:
        from serving.runtimes import container  # noqa: PLC0415  it stands on this module

        return functools.partial(container.load, spec.model_container)
    framework = _find_framework(spec.framework) or detect_framework(spec.model_dir, spec.prediction_class)
    if spec.method not in ("", "predict") and not framework.has_methods:
        titles = " and ".join(one.title for one in load_frameworks().values() if one.has_methods)
        raise LoadFailed(
            f"The predictionMethod {spec.method} is for models of {titles}; one of "
            f"{framework.name} has no other than predict."
        )
    if spec.external is not None and framework.predictor_loaders:
        from serving.runtimes import external  # noqa: PLC0415  it stands on this module

        return functools.partial(external.load, spec.external, framework)
    try:
        load_function: Callable[[LoadSpec], Runtime] = import_object(framework.load)
    except ImportError as error:
        raise LoadFailed(
            f"{framework.name} is not installed here ({error}): pip install '{framework.requirement}'"
        ) from error
    return load_function


def _find_framework(name: str) -> Framework | None:
    """None where it is to be detected. Raises LoadFailed."""
    framework = load_frameworks().get(name)
    if name and framework is None:
        known = ", ".join(one.name for one in list_selectable())
        raise LoadFailed(f"Unknown framework {name!r}; known: {known}.")
    return framework
