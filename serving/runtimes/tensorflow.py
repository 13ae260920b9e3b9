"""TensorFlow SavedModels, of version 1 and 2. Only files named `tensorflow…` import TensorFlow.

A model is loaded into a Session, and every signature becomes one prepared callable that runs on the
caller's thread. It answers what `tf.saved_model.load(...).signatures[name](...)` answers, to the bit, for a
tenth of the cost of a small call. Bits depend on how the graph optimiser rewrites the graph, and that on
what it is told, so a Session has to be told what a signature call tells:

- The shapes of the inputs. A Session takes those of fed tensors as unknown, so each input is fed to a
  placeholder of our own and enters the graph through an EnsureShape op with the signature's shape.
- Not the values of the constants that a function captured (version 2): a signature call passes them as
  arguments, a Session would fold them. They are hidden behind PlaceholderWithDefault ops.

Names are those of the saved SignatureDef; the argument names of a signature function, which differ where an
alias is no Python identifier, never come into it.

Importing this module runs no op and starts no thread, and it leaves the environment alone: who starts the
process sets TF_CPP_MIN_LOG_LEVEL and CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.saved_model.loader_impl import SavedModelLoader, get_init_op

from serving import schema
from serving.errors import InvalidInputs, LoadFailed
from serving.runtimes import Columns, Source, tensorflow_graph, tensorflow_separation, tensorflow_warmup
from serving.runtimes.describing import first, readable, show, to_json
from serving.runtimes.instances import Batch, Tensors
from serving.runtimes.tensorflow_examples import serialised
from serving.runtimes.tensorflow_signature import Arrays, Feed, Shape, Signature, Tensor, brief
from serving.schema import ModelSchema

_log = logging.getLogger(__name__)


_TAG = "serve"
# The version of graphs from which on a placeholder without dimensions is a scalar, and not of any shape.
_KNOWS_SCALARS = 24
_INTERNAL = "__saved_model_"  # the loader's own signatures: __saved_model_init_op, __saved_model_train_op
_LOAD_ERRORS = (tf.errors.OpError, OSError, RuntimeError, ValueError, KeyError, TypeError)


def load(source: Source) -> TensorFlowRuntime:
    """Load the SavedModel with the tag `serve`. Raises LoadFailed with a sentence that says what to do.

    The thread pools belong to the process: the first model loaded sets their size.
    """
    _require_saved_model(source.model_dir)
    _load_custom_ops(source.model_dir)
    try:
        try:
            return _open(source, _Misdeclared({}, {}))
        except _LOAD_ERRORS:
            misdeclared = _misdeclared(source.model_dir)
            if not any(misdeclared):
                raise
            return _open(source, misdeclared)
    except _LOAD_ERRORS as error:
        raise _load_failure(error, source.model_dir) from error


class _Misdeclared(NamedTuple):
    """The signatures that name what the graph does not have, with the reason; and by name and alias the types
    of tensors that have others in the graph than is declared."""

    left_out: Mapping[str, str]
    types: Mapping[str, Mapping[str, Any]]


# ---- the runtime


class TensorFlowRuntime:
    """A loaded SavedModel: named columns in, named columns out.

    `warnings` names the signatures that JSON instances cannot reach, and those of `left_out`, which cannot be
    computed at all, with the reason; `corrected` tells of what is served otherwise than it is declared.
    """

    framework = "TENSORFLOW"
    exact = False

    def __init__(
        self,
        model_dir: Path,
        signatures: Mapping[str, Signature],
        left_out: Mapping[str, str],
        corrected: Iterable[str] = (),
    ) -> None:
        self._model_dir = model_dir
        self._signatures = signatures
        self._left_out = left_out
        self.mergeable = all(signature.independent_rows for signature in signatures.values())
        self.warnings = (
            *left_out.values(),
            *corrected,
            *(
                problem
                for signature in signatures.values()
                for problem in (signature.input_problem, signature.output_problem)
                if problem
            ),
        )

    def form(self, parameters: Mapping[str, Any]) -> Columns:
        """One column per input alias of the signature that `signature_name` chooses."""
        signature = self._choose(parameters.get("signature_name"))
        if signature.input_problem:
            raise InvalidInputs(signature.input_problem)
        return signature.form

    def predict(self, instances: Arrays | Tensors, /, **parameters: Any) -> Batch:
        """The outputs by alias: columns for columns, tensors as they are for tensors as they are.

        `signature_name` chooses the signature. A tuple `signature_names` asks several of them about the same
        inputs, their outputs being named SIGNATURE/ALIAS; JSON has no tuples. Other parameters mean nothing.
        """
        names = parameters.get("signature_names")
        if isinstance(names, tuple):
            return self._ask_each(names, instances)
        signature = self._choose(parameters.get("signature_name"))
        if isinstance(instances, Tensors):
            return Tensors(signature.call(instances.values))
        return signature.predict(instances)

    def samples(self, count: int) -> Arrays | None:
        """Made-up instances for the default signature, the same at every call.

        Unknown dimensions count as 1. A signature with a fixed batch gets that many instances, whatever
        the count. None without a default signature, or when a rank is unknown.
        """
        try:
            signature = self._choose(None)
        except InvalidInputs:
            return None
        return signature.samples(count)

    def warmup_requests(self) -> Iterator[tuple[Arrays, dict[str, Any]]]:
        """The recorded warm-up requests that came with the model: instances and parameters.

        Once it has come to its end, `warnings` tells of the records that are not used.
        """
        path = self._model_dir / tensorflow_warmup.FILE
        if not path.is_file():
            return
        unreadable: list[str] = []
        skipped = 0
        for number, record in enumerate(self._records(path), 1):
            try:
                request = tensorflow_warmup.parse(record)
                made = None if request is None else self._warmup_request(request)
            except (tf.errors.OpError, tensorflow_warmup.Malformed, ValueError, TypeError) as error:
                unreadable.append(f"record {number}: {brief(error)}")
                continue
            if made is None:
                skipped += 1
            else:
                yield made
        if unreadable:
            self._warn(f"Records that cannot be read are not used: {len(unreadable)}, as {unreadable[0]}")
        if skipped:
            self._warn(f"{skipped} records are sessions or streams and are not used.")

    def _records(self, path: Path) -> Iterator[bytes]:
        try:
            with _quiet():
                records = tf.compat.v1.io.tf_record_iterator(str(path))
            for number, record in enumerate(records):
                if number == tensorflow_warmup.LIMIT:
                    self._warn(f"There are more than {number} records; the rest is not used.")
                    return
                yield record
        except (tf.errors.OpError, ValueError, TypeError) as error:
            self._warn(f"The file is damaged, the rest of it is not used: {brief(error)}")

    def _warn(self, problem: str) -> None:
        """Tell of what is wrong with recorded requests, once."""
        text = f"{tensorflow_warmup.FILE}: {problem}"
        _log.warning(text)
        self.warnings = tuple(dict.fromkeys((*self.warnings, text)))

    def schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """The signatures as they are saved; the example is the first recorded request, or made up."""
        shown = show(self, first(examples, self.instances), rows=self._rows)
        return ModelSchema(
            schema.SAVED_MODEL_PLATFORM,
            {name: signature.schema for name, signature in self._signatures.items()},
            default=self._default_name,
            example=shown and shown.instance,
            answer=shown and shown.answer,
        )

    def advice(self) -> str:
        """Which TensorFlow computes it."""
        return f"This server has tensorflow {tf.__version__}."

    @property
    def _rows(self) -> int:
        """The instances that a request has."""
        signature = self._signatures.get(self._default_name)
        return (signature.fixed_rows if signature else None) or 1

    def instances(self) -> Iterator[Any]:
        """The first recorded request, and what can be made up for the default signature."""
        recorded = (request for request, parameters in self.warmup_requests() if not parameters)
        if (request := next(recorded, None)) is not None:
            yield _instance(request)
        signature = self._signatures.get(self._default_name)
        if signature is not None and signature.takes_text:
            yield from ({"b64": base64.b64encode(one).decode()} for one in serialised(signature.graph))
        if (made := self.samples(1)) is not None:
            yield _instance({alias: readable(column) for alias, column in made.items()})

    def _warmup_request(self, request: tensorflow_warmup.Request) -> tuple[Arrays, dict[str, Any]]:
        if isinstance(request, tensorflow_warmup.Predict):
            tensors = {alias: tf.make_ndarray(tensor) for alias, tensor in request.inputs.items()}
            return _as_instances(tensors), self._parameters(request.signature)
        examples = np.array(request.examples, object)
        name = request.signatures[0] or self._default_name if len(request.signatures) == 1 else ""
        if name in self._signatures:
            return {tensor.alias: examples for tensor in self._signatures[name].inputs}, self._parameters(
                name
            )
        return {"inputs": examples}, {"signature_names": request.signatures}

    def _parameters(self, signature: str) -> dict[str, Any]:
        return {"signature_name": signature} if signature not in ("", self._default_name) else {}

    def _ask_each(self, names: Iterable[str], instances: Arrays | Tensors) -> Batch:
        signatures = [self._choose(name) for name in names]
        given = instances.values if isinstance(instances, Tensors) else instances
        answers: Arrays = {}
        for signature in signatures:
            inputs = _renamed(given, signature)
            own = signature.call(inputs) if given is not instances else signature.predict(inputs)
            answers |= {f"{signature.name}/{alias}": value for alias, value in own.items()}
        return Tensors(answers) if given is not instances else answers

    def _choose(self, name: object) -> Signature:
        if name is None or name == "":
            return self._default
        if not isinstance(name, str):
            raise InvalidInputs(f'"signature_name" must be a string; it is {name!r}.')
        if name in self._left_out:
            raise InvalidInputs(self._left_out[name])
        try:
            return self._signatures[name]
        except KeyError:
            raise InvalidInputs(f"No signature found for signature key {name}. {self._known}") from None

    @property
    def _default(self) -> Signature:
        try:
            return self._signatures[self._default_name]
        except KeyError:
            raise InvalidInputs(f'Say which signature to use in "signature_name". {self._known}') from None

    @property
    def _default_name(self) -> str:
        """The signature that answers if none is named, "" if none does."""
        if len(self._signatures) == 1:
            return next(iter(self._signatures))
        return schema.DEFAULT_SIGNATURE if schema.DEFAULT_SIGNATURE in self._signatures else ""

    @property
    def _known(self) -> str:
        return f"The model has: {', '.join(self._signatures)}."


def _renamed(given: Mapping[str, NDArray[Any]], signature: Signature) -> Arrays:
    """The inputs with the names of this signature, where it has one input and there is one."""
    if len(given) == len(signature.inputs) == 1:
        return {signature.inputs[0].alias: next(iter(given.values()))}
    return dict(given)


# ---- loading


def _require_saved_model(model_dir: Path) -> None:
    if (model_dir / "saved_model.pb").is_file() or (model_dir / "saved_model.pbtxt").is_file():
        return
    below = sorted(path.parent.name for path in model_dir.glob("*/saved_model.pb*"))
    hint = f" There is one in its folder {below[-1]}: use that as deploymentUri." if below else ""
    raise LoadFailed(
        f"There is no saved_model.pb or saved_model.pbtxt directly in the model directory.{hint}"
    )


def _load_custom_ops(model_dir: Path) -> None:
    for library in sorted((model_dir / "assets.extra").glob("*.so")):
        try:
            tf.load_op_library(str(library))
        except (tf.errors.OpError, RuntimeError, OSError) as error:
            raise LoadFailed(
                f"assets.extra/{library.name} cannot be loaded as custom ops: {brief(error, model_dir)}. "
                f"Build it against TensorFlow {tf.__version__} for this machine."
            ) from error


def _serving_graph(meta_graphs: Iterable[Any]) -> Any:
    tags = [set(meta_graph.meta_info_def.tags) for meta_graph in meta_graphs]
    if {_TAG} not in tags:
        found = "; ".join(", ".join(sorted(some)) or "none" for some in tags) or "no graph at all"
        raise LoadFailed(
            f'The SavedModel has no graph with just the tag "{_TAG}" (found: {found}). Export it again.'
        )
    meta_graph = list(meta_graphs)[tags.index({_TAG})]
    if not _servable(meta_graph):
        raise LoadFailed("The SavedModel has no signature. Export it with signatures=... or model.export().")
    return meta_graph


def _servable(meta_graph: Any) -> list[tuple[str, Any]]:
    return sorted(item for item in meta_graph.signature_def.items() if not item[0].startswith(_INTERNAL))


def _tensors(infos: Mapping[str, Any]) -> tuple[Tensor, ...]:
    return tuple(_tensor(alias, infos[alias]) for alias in sorted(infos))


def _tensor(alias: str, info: Any) -> Tensor:
    dense = _dense(info)
    dtype = np.dtype(_dtype(info).as_numpy_dtype if dense else object)
    return Tensor(alias, info.name, dtype, _shape(info.tensor_shape), dense)


def _placeholders(graph: Any) -> dict[str, Shape | None]:
    """The shapes that a graph's placeholders have, by their tensors."""
    shapes = {
        f"{node.name}:0": _shape(node.attr["shape"].shape)
        for node in graph.node
        if node.op == "Placeholder" and "shape" in node.attr
    }
    if graph.versions.producer < _KNOWS_SCALARS:
        return {name: shape or None for name, shape in shapes.items()}
    return shapes


def _correct_scalars(
    graph: Any, definitions: Iterable[Any], placeholders: Mapping[str, Shape | None]
) -> None:
    """Declare a signature's only input as rows, where it is said to be a scalar and the graph knows none."""
    with_default = {f"{node.name}:0" for node in graph.node if node.op == "PlaceholderWithDefault"}
    for definition in definitions:
        infos = list(definition.inputs.values())
        if len(infos) != 1 or not _dense(infos[0]) or _shape(infos[0].tensor_shape) != ():
            continue
        if placeholders.get(infos[0].name) != () and infos[0].name not in with_default:
            infos[0].tensor_shape.dim.add(size=-1)


def _with_shape_of(placeholders: Mapping[str, Shape | None], tensor: Tensor) -> Tensor:
    """An input that knows whether its shape is that of a placeholder."""
    enforced = tensor.name in placeholders and placeholders[tensor.name] == tensor.shape
    return replace(tensor, enforced=enforced or not tensor.dense)


def _dtype(info: Any) -> Any:
    return tf.dtypes.as_dtype(info.dtype).base_dtype


def _dense(info: Any) -> bool:
    return info.WhichOneof("encoding") == "name" and _dtype(info) not in (tf.resource, tf.variant)


def _shape(proto: Any) -> Shape | None:
    if proto.unknown_rank:
        return None
    return tuple(None if dimension.size < 0 else dimension.size for dimension in proto.dim)


def _open(source: Source, misdeclared: _Misdeclared) -> TensorFlowRuntime:
    """The model in a session, with the graph's types, and without signatures that cannot be asked."""
    loader = SavedModelLoader(str(source.model_dir))
    meta_graph = _serving_graph(loader.saved_model.meta_graphs)
    corrected = list(_correct_types(meta_graph, misdeclared.types))
    left_out = {**_of_complex_numbers(meta_graph), **misdeclared.left_out}
    for name in left_out:
        del meta_graph.signature_def[name]
    definitions = dict(_servable(meta_graph))
    if not definitions:
        raise LoadFailed(" ".join(left_out.values()))
    graph = tf.Graph()
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=source.threads,
        inter_op_parallelism_threads=source.threads,
        allow_soft_placement=True,
    )
    session = tf.compat.v1.Session(graph=graph, config=config)
    if meta_graph.HasField("object_graph_def"):  # what makes a model one of version 2
        tensorflow_graph.trim(meta_graph, definitions.values(), loader.variables_path)
        _hide_captured(meta_graph.graph_def)
    placeholders = _placeholders(meta_graph.graph_def)
    _correct_scalars(meta_graph.graph_def, definitions.values(), placeholders)
    for node in meta_graph.graph_def.node:  # notes of who exported it, which other inputs may contradict
        node.attr.pop("_output_shapes", None)
    names = tensorflow_separation.separate(meta_graph.graph_def, definitions)
    with graph.as_default():
        feeds, inputs = _doors(definitions, names)
        # What `loader.load` does, but that would read the file once more and run even nothing.
        saver, _ = loader.load_graph(graph, [_TAG], input_map=inputs)
        loader.restore_variables(session, saver)
        if not _is_nothing(get_init_op(meta_graph)):
            loader.run_init_ops(session, [_TAG])
    signatures = {
        name: Signature(
            name,
            tuple(_with_shape_of(placeholders, one) for one in _tensors(definition.inputs)),
            _tensors(definition.outputs),
            session,
            feeds[name],
            fetches=names[name],
            method=definition.method_name or schema.PREDICT,
        )
        for name, definition in definitions.items()
    }
    return TensorFlowRuntime(source.model_dir, signatures, left_out, corrected)


def _of_complex_numbers(meta_graph: Any) -> dict[str, str]:
    """The signatures that take or answer complex numbers, and what to do about it."""
    problems = {}
    for name, definition in _servable(meta_graph):
        infos = [*definition.inputs.items(), *definition.outputs.items()]
        dense = [(alias, _dtype(info)) for alias, info in infos if _dense(info)]
        if found := [f"{alias} ({dtype.name})" for alias, dtype in dense if dtype.is_complex]:
            problems[name] = (
                f"Signature {name} is left out: it has complex numbers, for which there is no JSON, as "
                f"{', '.join(found)}. Export it with their real and imaginary parts."
            )
    return problems


def _misdeclared(model_dir: Path) -> _Misdeclared:
    """What signatures declare otherwise than the graph has it; nothing where none names what is there."""
    meta_graph = _serving_graph(SavedModelLoader(str(model_dir)).saved_model.meta_graphs)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(meta_graph.graph_def, name="")
    left_out: dict[str, str] = {}
    types: dict[str, dict[str, Any]] = {}
    for name, definition in _servable(meta_graph):
        for alias, info in _dense_infos(definition):
            try:
                actual = graph.get_tensor_by_name(info.name).dtype.base_dtype
            except (KeyError, ValueError):
                left_out[name] = (
                    f"Signature {name} is left out: the graph has no tensor {info.name}, which it names as "
                    f"{alias}. Export the model again."
                )
                break
            if actual != _dtype(info):
                types.setdefault(name, {})[alias] = actual
    if len(left_out) == len(_servable(meta_graph)):
        return _Misdeclared({}, {})
    return _Misdeclared(left_out, types)


def _correct_types(meta_graph: Any, types: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Declare tensors as the graph has them: nothing else can be fed or fetched. Tells of each."""
    for name, actual in types.items():
        for alias, info in _dense_infos(meta_graph.signature_def[name]):
            if alias in actual and _dtype(info) != actual[alias]:
                yield (
                    f"Signature {name} declares {alias} as {_dtype(info).name}, but {info.name} is "
                    f"{actual[alias].name}: it is served as {actual[alias].name}."
                )
                info.dtype = actual[alias].as_datatype_enum


def _dense_infos(definition: Any) -> list[tuple[str, Any]]:
    """The dense inputs and outputs of a signature by their aliases."""
    infos = (*sorted(definition.inputs.items()), *sorted(definition.outputs.items()))
    return [(alias, info) for alias, info in infos if _dense(info)]


def _is_nothing(op: Any) -> bool:
    """Whether an op does nothing, itself or by what it waits for."""
    return isinstance(op, tf.Operation) and op.type == "NoOp" and not op.control_inputs


def _doors(
    definitions: Mapping[str, Any], names: Mapping[str, tensorflow_separation.Names]
) -> tuple[dict[str, dict[str, Feed]], dict[str, Any]]:
    """The placeholder to feed for each dense input of each signature, and what takes which tensor's place."""
    feeds: dict[str, dict[str, Feed]] = {name: {} for name in definitions}
    doors: dict[str, Feed] = {}
    inputs: dict[str, Any] = {}
    for name, definition in definitions.items():
        for info in filter(_dense, definition.inputs.values()):
            tensor = names[name].get(info.name, info.name)
            if tensor not in doors:
                door = tf.compat.v1.placeholder(_dtype(info), name="pilotlight_feed")
                inputs[tensor] = tf.ensure_shape(door, info.tensor_shape, name="pilotlight_input")
                doors[tensor] = Feed(door.name, inputs[tensor].name)
            feeds[name][info.name] = doors[tensor]
    return feeds, inputs


def _hide_captured(graph: Any) -> None:
    """Make the constants that are passed to functions unknown to the graph optimiser."""
    calls = [node for node in graph.node if node.op in ("PartitionedCall", "StatefulPartitionedCall")]
    passed = {name.removesuffix(":0") for call in calls for name in call.input}
    for node in [node for node in graph.node if node.op == "Const" and node.name in passed]:
        value = graph.node.add()
        value.CopyFrom(node)
        value.name = f"{node.name}/pilotlight_value"
        node.op = "PlaceholderWithDefault"
        node.input[:] = [value.name]
        node.attr["shape"].shape.CopyFrom(value.attr["value"].tensor.tensor_shape)
        del node.attr["value"]


# ---- errors

_UNKNOWN_OP = re.compile(r"(?:Op type not registered|No op named) '?(\w+)")
_FILES_MISSING = re.compile(
    r"No such file|not a valid checkpoint|Failed to find any matching files|Read less bytes than requested"
    r"|file is too short|truncated|checksum"
)
_NO_REASON = "Graph execution error"


def _load_failure(error: BaseException, model_dir: Path) -> LoadFailed:
    causes = list(_causes(error))
    whole = "\n".join(map(str, causes))
    if unknown := _UNKNOWN_OP.search(whole):
        return LoadFailed(
            f"The graph uses the op {unknown[1]}, which TensorFlow {tf.__version__} does not have. "
            "Put the library of a custom op into assets.extra/ as a .so file, or export the model again."
        )
    said = [brief(cause, model_dir) for cause in causes]
    if said[0].startswith("Cannot parse file") or isinstance(error, UnicodeDecodeError):
        return LoadFailed(
            "saved_model.pb or saved_model.pbtxt is cut short or is not a SavedModel. "
            "Copy the exported folder again."
        )
    reason = next((text for text in said if not text.startswith(_NO_REASON)), said[0])
    remedy = (
        "Check that the exported folder was copied whole, with variables/ and assets/."
        if _FILES_MISSING.search(whole)
        else "Export the model again, with a TensorFlow that is not newer."
    )
    return LoadFailed(f"TensorFlow {tf.__version__} cannot load the SavedModel: {reason}. {remedy}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that led to it, which tell what it may leave out."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


# ---- recorded warm-up requests


def _instance(instances: Arrays) -> Any:
    """The first row as an AI Platform request has it: bare if there is one input."""
    values = {alias: to_json(column) for alias, column in instances.items()}
    return next(iter(values.values())) if len(values) == 1 else values


def _as_instances(tensors: Arrays) -> Arrays:
    """The tensors of a request as columns: one without a batch dimension is repeated for every row."""
    count = next((len(array) for array in tensors.values() if array.ndim), 1)
    return {alias: array if array.ndim else np.repeat(array, count) for alias, array in tensors.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without TensorFlow's advice that a function is deprecated."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
