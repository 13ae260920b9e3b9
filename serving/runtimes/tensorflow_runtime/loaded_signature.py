"""A signature of a loaded SavedModel as a callable on arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from serving import model_schema
from serving.errors import InvalidInputs, InvalidOutputs, ModelFailed
from serving.runtimes.tensor_signature import SignatureTensor, TensorSignature

_CALLER_THREAD = -1


class FeedNames(NamedTuple):
    """The names by which an input is fed: as it was declared, or in another shape."""

    declared: str
    other: str


class LoadedSignature(TensorSignature):
    """One signature of a loaded model.

    `feeds` are the names of its inputs in the session, `fetches` those of outputs that have others there.
    """

    def __init__(
        self,
        name: str,
        inputs: tuple[SignatureTensor, ...],
        outputs: tuple[SignatureTensor, ...],
        session: Any,
        feeds: Mapping[str, FeedNames],
        *,
        fetches: Mapping[str, str],
        method: str = model_schema.PREDICT,
    ) -> None:
        super().__init__(f"Signature {name}", inputs, outputs, method=method)
        self.name = name
        self._session = session
        self._feeds = feeds
        self._fetches = fetches
        # An output may be an input passed on, and two aliases may share a tensor: each tensor is fed or
        # fetched once. `_output_indexes` says where in [*fed, *fetched] an output's value is.
        fed = list(dict.fromkeys(i.name for i in inputs))
        self._fetched = [name for name in dict.fromkeys(o.name for o in outputs) if name not in fed]
        self._fed = fed
        names = fed + self._fetched
        self._output_indexes = tuple((o.alias, names.index(o.name), o.dtype) for o in outputs)

    @property
    def takes_text(self) -> bool:
        """Whether an instance is one text, maybe a serialised `tf.Example`."""
        return len(self.inputs) == 1 and self.inputs[0].dtype.kind == "O" and self.inputs[0].row_shape == ()

    @property
    def graph_def(self) -> Any:
        """The GraphDef of the model."""
        return self._session.graph.as_graph_def()

    def compute_outputs(self, values: list[Any]) -> Iterator[tuple[str, Any, np.dtype[Any]]]:
        """Alias, value and dtype of each output, for what is fed, in that order."""
        try:
            run = (
                self._run_declared
                if self.are_shapes_enforced or self._have_declared_shapes(values)
                else self._run_undeclared
            )
            values = [*values, *run(*values)]
        except tf.errors.OpError as error:
            raise _to_serving_error(error) from error
        return ((alias, values[place], dtype) for alias, place, dtype in self._output_indexes)

    @cached_property
    def _run_declared(self) -> Callable[..., Sequence[Any]]:
        """The prepared callable, made when the signature is first used (warm-up, as a rule)."""
        return self._make_callable([self._feeds[name].declared for name in self._fed])

    @cached_property
    def _run_undeclared(self) -> Callable[..., Sequence[Any]]:
        """The same for inputs of shapes that were not declared; what they may be is up to the graph."""
        return self._make_callable([self._feeds[name].other for name in self._fed])

    def _make_callable(self, feeds: Iterable[str]) -> Callable[..., Sequence[Any]]:
        if self.output_problem:
            raise InvalidOutputs(self.output_problem)
        if not self._fetched:
            return lambda *_: ()
        fetches = [self._fetches.get(name, name) for name in self._fetched]
        options = config_pb2.CallableOptions(feed=feeds, fetch=fetches)
        options.run_options.inter_op_thread_pool = _CALLER_THREAD
        run: Callable[..., Sequence[Any]] = self._session._make_callable_from_options(options)
        return run

    def _have_declared_shapes(self, values: Iterable[Any]) -> bool:
        specs = {spec.name: spec for spec in self.inputs}
        return all(
            specs[name].matches_shape(np.shape(value)) for name, value in zip(self._fed, values, strict=True)
        )


# ---- errors

_PREAMBLE = re.compile(
    r"(?:\d+ root error\(s\) found\.\s*\(0\) [\w ]+: )?(?:\{\{function_node [^}]*\}\}\s*)*"
)
_NOISE = re.compile(r"\s*(?:\[\[\{\{|\n|Original stack trace|Caused by op).*", re.DOTALL)


def summarize_error(error: BaseException, model_dir: Path | None = None) -> str:
    """The first meaningful sentence of a TensorFlow error, without nodes, stacks and our own folders."""
    text = str(error.message if isinstance(error, tf.errors.OpError) else error).strip()
    if model_dir is not None:
        text = text.replace(f"{model_dir}/", "")
    text = _NOISE.sub("", text[_PREAMBLE.match(text).end() :])  # type: ignore[union-attr]  # it matches ""
    return text.rstrip(".")[:500] or type(error).__name__


def _to_serving_error(error: Any) -> InvalidInputs | ModelFailed:
    message = summarize_error(error)
    of_input = isinstance(error, tf.errors.InvalidArgumentError | tf.errors.OutOfRangeError)
    if of_input or message.startswith("Unsupported object type"):
        return InvalidInputs(message)
    return ModelFailed(f"Exception during running the graph: {message}")
