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

from serving import model_schema
from serving.errors import InvalidInputs, LoadFailed
from serving.model_schema import ModelSchema
from serving.protocols.protos import MessageDecodeError
from serving.runtimes import ColumnsFormat, LoadSpec
from serving.runtimes.instance_batch import Batch, WholeTensors
from serving.runtimes.schema_inference import (
    chain_lazily,
    find_answered_example,
    first_instance_to_json,
    round_for_display,
)
from serving.runtimes.tensor_signature import Arrays, Shape, SignatureTensor
from serving.runtimes.tensorflow_runtime import graph_pruning, signature_separation, warmup_records
from serving.runtimes.tensorflow_runtime.framework import FRAMEWORK
from serving.runtimes.tensorflow_runtime.loaded_signature import (
    FeedNames,
    LoadedSignature,
    summarize_error,
)
from serving.runtimes.tensorflow_runtime.warmup_records import make_serialized_examples

_log = logging.getLogger(__name__)


_SERVING_TAG = "serve"
# The version of graphs from which on a placeholder without dimensions is a scalar, and not of any shape.
_FIRST_PRODUCER_WITH_SCALARS = 24
# Of the loader's own signatures: __saved_model_init_op, __saved_model_train_op.
_INTERNAL_PREFIX = "__saved_model_"
_LOAD_ERRORS = (tf.errors.OpError, OSError, RuntimeError, ValueError, KeyError, TypeError)


def load_model(spec: LoadSpec) -> TensorFlowRuntime:
    """Load the SavedModel with the tag `serve`. Raises LoadFailed with a sentence that says what to do.

    The thread pools belong to the process: the first model loaded sets their size.
    """
    _require_saved_model(spec.model_dir)
    _load_custom_ops(spec.model_dir)
    try:
        try:
            return _load_runtime(spec, _SignatureMismatches({}, {}))
        except _LOAD_ERRORS:
            misdeclared = _find_signature_mismatches(spec.model_dir)
            if not any(misdeclared):
                raise
            return _load_runtime(spec, misdeclared)
    except _LOAD_ERRORS as error:
        raise _to_load_error(error, spec.model_dir) from error


class _SignatureMismatches(NamedTuple):
    """The signatures that name what the graph does not have, with the reason; and by name and alias the types
    of tensors that have others in the graph than is declared."""

    left_out: Mapping[str, str]
    actual_types: Mapping[str, Mapping[str, Any]]


# ---- the runtime


class TensorFlowRuntime:
    """A loaded SavedModel: named columns in, named columns out.

    `warnings` names the signatures that JSON instances cannot reach, and those of `left_out`, which cannot be
    computed at all, with the reason; `corrected` tells of what is served otherwise than it is declared.
    """

    framework = FRAMEWORK
    exact = False

    def __init__(
        self,
        model_dir: Path,
        signatures: Mapping[str, LoadedSignature],
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

    def input_format(self, parameters: Mapping[str, Any]) -> ColumnsFormat:
        """One column per input alias of the signature that `signature_name` chooses."""
        signature = self._choose_signature(parameters.get("signature_name"))
        if signature.input_problem:
            raise InvalidInputs(signature.input_problem)
        return signature.input_format

    def predict(self, instances: Arrays | WholeTensors, /, **parameters: Any) -> Batch:
        """The outputs by alias: columns for columns, tensors as they are for tensors as they are.

        `signature_name` chooses the signature. A tuple `signature_names` asks several of them about the same
        inputs, their outputs being named SIGNATURE/ALIAS; JSON has no tuples. Other parameters mean nothing.
        """
        names = parameters.get("signature_names")
        if isinstance(names, tuple):
            return self._predict_signatures(names, instances)
        signature = self._choose_signature(parameters.get("signature_name"))
        if isinstance(instances, WholeTensors):
            return WholeTensors(signature.predict_tensors(instances.values))
        return signature.predict(instances)

    def make_synthetic_rows(self, count: int) -> Arrays | None:
        """Made-up instances for the default signature, the same at every call.

        Unknown dimensions count as 1. A signature with a fixed batch gets that many instances, whatever
        the count. None without a default signature, or when a rank is unknown.
        """
        try:
            signature = self._choose_signature(None)
        except InvalidInputs:
            return None
        return signature.make_synthetic_rows(count)

    def warmup_requests(self) -> Iterator[tuple[Arrays, dict[str, Any]]]:
        """The recorded warm-up requests that came with the model: instances and parameters.

        Once it has come to its end, `warnings` tells of the records that are not used.
        """
        path = self._model_dir / warmup_records.WARMUP_FILE
        if not path.is_file():
            return
        unreadable: list[str] = []
        skipped = 0
        for number, record in enumerate(self._read_records(path), 1):
            try:
                request = warmup_records.parse_record(record)
                made = None if request is None else self._to_warmup_request(request)
            except (tf.errors.OpError, MessageDecodeError, ValueError, TypeError) as error:
                unreadable.append(f"record {number}: {summarize_error(error)}")
                continue
            if made is None:
                skipped += 1
            else:
                yield made
        if unreadable:
            self._add_warning(
                f"Records that cannot be read are not used: {len(unreadable)}, as {unreadable[0]}"
            )
        if skipped:
            self._add_warning(f"{skipped} records are sessions or streams and are not used.")

    def _read_records(self, path: Path) -> Iterator[bytes]:
        try:
            with _without_deprecation_warnings():
                records = tf.compat.v1.io.tf_record_iterator(str(path))
            for number, record in enumerate(records):
                if number == warmup_records.MAX_RECORDS:
                    self._add_warning(f"There are more than {number} records; the rest is not used.")
                    return
                yield record
        except (tf.errors.OpError, ValueError, TypeError) as error:
            self._add_warning(f"The file is damaged, the rest of it is not used: {summarize_error(error)}")

    def _add_warning(self, problem: str) -> None:
        """Tell of what is wrong with recorded requests, once."""
        text = f"{warmup_records.WARMUP_FILE}: {problem}"
        _log.warning(text)
        self.warnings = tuple(dict.fromkeys((*self.warnings, text)))

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """The signatures as they are saved; the example is the first recorded request, or made up."""
        answered = find_answered_example(
            self, chain_lazily(examples, self.make_example_instances), rows=self._rows_per_request
        )
        return ModelSchema(
            FRAMEWORK.platform,
            {name: signature.schema for name, signature in self._signatures.items()},
            default=self._default_name,
            example=answered and answered.instance,
            answer=answered and answered.answer,
        )

    def describe_versions(self) -> str:
        """Which TensorFlow computes it."""
        return f"This server has tensorflow {tf.__version__}."

    @property
    def _rows_per_request(self) -> int:
        """The instances that a request has."""
        signature = self._signatures.get(self._default_name)
        return (signature.fixed_rows if signature else None) or 1

    def make_example_instances(self) -> Iterator[Any]:
        """The first recorded request, and what can be made up for the default signature."""
        recorded = (request for request, parameters in self.warmup_requests() if not parameters)
        if (request := next(recorded, None)) is not None:
            yield first_instance_to_json(request)
        signature = self._signatures.get(self._default_name)
        if signature is not None and signature.takes_text:
            yield from (
                {"b64": base64.b64encode(one).decode()}
                for one in make_serialized_examples(signature.graph_def)
            )
        if (made := self.make_synthetic_rows(1)) is not None:
            yield first_instance_to_json({alias: round_for_display(column) for alias, column in made.items()})

    def _to_warmup_request(self, request: warmup_records.WarmupRecord) -> tuple[Arrays, dict[str, Any]]:
        if isinstance(request, warmup_records.PredictRecord):
            tensors = {alias: tf.make_ndarray(tensor) for alias, tensor in request.inputs.items()}
            return _to_columns(tensors), self._signature_parameters(request.signature)
        examples = np.array(request.examples, object)
        name = request.signatures[0] or self._default_name if len(request.signatures) == 1 else ""
        if name in self._signatures:
            return {
                tensor.alias: examples for tensor in self._signatures[name].inputs
            }, self._signature_parameters(name)
        return {"inputs": examples}, {"signature_names": request.signatures}

    def _signature_parameters(self, signature: str) -> dict[str, Any]:
        return {"signature_name": signature} if signature not in ("", self._default_name) else {}

    def _predict_signatures(self, names: Iterable[str], instances: Arrays | WholeTensors) -> Batch:
        signatures = [self._choose_signature(name) for name in names]
        given = instances.values if isinstance(instances, WholeTensors) else instances
        answers: Arrays = {}
        for signature in signatures:
            inputs = _rename_input(given, signature)
            own = signature.predict_tensors(inputs) if given is not instances else signature.predict(inputs)
            answers |= {f"{signature.name}/{alias}": value for alias, value in own.items()}
        return WholeTensors(answers) if given is not instances else answers

    def _choose_signature(self, name: object) -> LoadedSignature:
        if name is None or name == "":
            return self._default_signature
        if not isinstance(name, str):
            raise InvalidInputs(f'"signature_name" must be a string; it is {name!r}.')
        if name in self._left_out:
            raise InvalidInputs(self._left_out[name])
        try:
            return self._signatures[name]
        except KeyError:
            raise InvalidInputs(
                f"No signature found for signature key {name}. {self._signatures_hint}"
            ) from None

    @property
    def _default_signature(self) -> LoadedSignature:
        try:
            return self._signatures[self._default_name]
        except KeyError:
            raise InvalidInputs(
                f'Say which signature to use in "signature_name". {self._signatures_hint}'
            ) from None

    @property
    def _default_name(self) -> str:
        """The signature that answers if none is named, "" if none does."""
        if len(self._signatures) == 1:
            return next(iter(self._signatures))
        return model_schema.DEFAULT_SIGNATURE if model_schema.DEFAULT_SIGNATURE in self._signatures else ""

    @property
    def _signatures_hint(self) -> str:
        return f"The model has: {', '.join(self._signatures)}."


def _rename_input(given: Mapping[str, NDArray[Any]], signature: LoadedSignature) -> Arrays:
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
                f"assets.extra/{library.name} cannot be loaded as custom ops: "
                f"{summarize_error(error, model_dir)}. "
                f"Build it against TensorFlow {tf.__version__} for this machine."
            ) from error


def _find_serving_graph(meta_graphs: Iterable[Any]) -> Any:
    tags = [set(meta_graph.meta_info_def.tags) for meta_graph in meta_graphs]
    if {_SERVING_TAG} not in tags:
        found = "; ".join(", ".join(sorted(some)) or "none" for some in tags) or "no graph at all"
        raise LoadFailed(
            f'The SavedModel has no graph with just the tag "{_SERVING_TAG}" (found: {found}). '
            "Export it again."
        )
    meta_graph = list(meta_graphs)[tags.index({_SERVING_TAG})]
    if not _list_signatures(meta_graph):
        raise LoadFailed("The SavedModel has no signature. Export it with signatures=... or model.export().")
    return meta_graph


def _list_signatures(meta_graph: Any) -> list[tuple[str, Any]]:
    return sorted(
        item for item in meta_graph.signature_def.items() if not item[0].startswith(_INTERNAL_PREFIX)
    )


def _parse_tensors(infos: Mapping[str, Any]) -> tuple[SignatureTensor, ...]:
    return tuple(_parse_tensor(alias, infos[alias]) for alias in sorted(infos))


def _parse_tensor(alias: str, info: Any) -> SignatureTensor:
    dense = _is_dense(info)
    dtype = np.dtype(_read_dtype(info).as_numpy_dtype if dense else object)
    return SignatureTensor(alias, info.name, dtype, _parse_shape(info.tensor_shape), dense)


def _read_placeholder_shapes(graph: Any) -> dict[str, Shape | None]:
    """The shapes that a graph's placeholders have, by their tensors."""
    shapes = {
        f"{node.name}:0": _parse_shape(node.attr["shape"].shape)
        for node in graph.node
        if node.op == "Placeholder" and "shape" in node.attr
    }
    if graph.versions.producer < _FIRST_PRODUCER_WITH_SCALARS:
        return {name: shape or None for name, shape in shapes.items()}
    return shapes


def _correct_scalars(
    graph: Any, definitions: Iterable[Any], placeholders: Mapping[str, Shape | None]
) -> None:
    """Declare a signature's only input as rows, where it is said to be a scalar and the graph knows none."""
    with_default = {f"{node.name}:0" for node in graph.node if node.op == "PlaceholderWithDefault"}
    for definition in definitions:
        infos = list(definition.inputs.values())
        if len(infos) != 1 or not _is_dense(infos[0]) or _parse_shape(infos[0].tensor_shape) != ():
            continue
        if placeholders.get(infos[0].name) != () and infos[0].name not in with_default:
            infos[0].tensor_shape.dim.add(size=-1)


def _mark_enforced(placeholders: Mapping[str, Shape | None], tensor: SignatureTensor) -> SignatureTensor:
    """An input that knows whether its shape is that of a placeholder."""
    enforced = tensor.name in placeholders and placeholders[tensor.name] == tensor.shape
    return replace(tensor, enforced=enforced or not tensor.dense)


def _read_dtype(info: Any) -> Any:
    return tf.dtypes.as_dtype(info.dtype).base_dtype


def _is_dense(info: Any) -> bool:
    return info.WhichOneof("encoding") == "name" and _read_dtype(info) not in (tf.resource, tf.variant)


def _parse_shape(proto: Any) -> Shape | None:
    if proto.unknown_rank:
        return None
    return tuple(None if dimension.size < 0 else dimension.size for dimension in proto.dim)


def _load_runtime(spec: LoadSpec, errors: _SignatureMismatches) -> TensorFlowRuntime:
    """The model in a session, with the graph's types, and without signatures that cannot be asked."""
    loader = SavedModelLoader(str(spec.model_dir))
    meta_graph = _find_serving_graph(loader.saved_model.meta_graphs)
    corrected = list(_correct_types(meta_graph, errors.actual_types))
    left_out = {**_find_complex_dtypes(meta_graph), **errors.left_out}
    for name in left_out:
        del meta_graph.signature_def[name]
    definitions = dict(_list_signatures(meta_graph))
    if not definitions:
        raise LoadFailed(" ".join(left_out.values()))
    graph = tf.Graph()
    config = config_pb2.ConfigProto(
        intra_op_parallelism_threads=spec.threads,
        inter_op_parallelism_threads=spec.threads,
        allow_soft_placement=True,
    )
    session = tf.compat.v1.Session(graph=graph, config=config)
    if meta_graph.HasField("object_graph_def"):  # what makes a model one of version 2
        graph_pruning.prune_graph(meta_graph, definitions.values(), loader.variables_path)
        _hide_captured_constants(meta_graph.graph_def)
    placeholders = _read_placeholder_shapes(meta_graph.graph_def)
    _correct_scalars(meta_graph.graph_def, definitions.values(), placeholders)
    for node in meta_graph.graph_def.node:  # notes of who exported it, which other inputs may contradict
        node.attr.pop("_output_shapes", None)
    names = signature_separation.separate_signatures(meta_graph.graph_def, definitions)
    with graph.as_default():
        feeds, inputs = _add_placeholders(definitions, names)
        # What `loader.load` does, but that would read the file once more and run even nothing.
        saver, _ = loader.load_graph(graph, [_SERVING_TAG], input_map=inputs)
        loader.restore_variables(session, saver)
        if not _is_no_op(get_init_op(meta_graph)):
            loader.run_init_ops(session, [_SERVING_TAG])
    signatures = {
        name: LoadedSignature(
            name,
            tuple(_mark_enforced(placeholders, one) for one in _parse_tensors(definition.inputs)),
            _parse_tensors(definition.outputs),
            session,
            feeds[name],
            fetches=names[name],
            method=definition.method_name or model_schema.PREDICT,
        )
        for name, definition in definitions.items()
    }
    return TensorFlowRuntime(spec.model_dir, signatures, left_out, corrected)


def _find_complex_dtypes(meta_graph: Any) -> dict[str, str]:
    """The signatures that take or answer complex numbers, and what to do about it."""
    problems = {}
    for name, definition in _list_signatures(meta_graph):
        infos = [*definition.inputs.items(), *definition.outputs.items()]
        dense = [(alias, _read_dtype(info)) for alias, info in infos if _is_dense(info)]
        if found := [f"{alias} ({dtype.name})" for alias, dtype in dense if dtype.is_complex]:
            problems[name] = (
                f"Signature {name} is left out: it has complex numbers, for which there is no JSON, as "
                f"{', '.join(found)}. Export it with their real and imaginary parts."
            )
    return problems


def _find_signature_mismatches(model_dir: Path) -> _SignatureMismatches:
    """What signatures declare otherwise than the graph has it; nothing where none names what is there."""
    meta_graph = _find_serving_graph(SavedModelLoader(str(model_dir)).saved_model.meta_graphs)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(meta_graph.graph_def, name="")
    left_out: dict[str, str] = {}
    types: dict[str, dict[str, Any]] = {}
    for name, definition in _list_signatures(meta_graph):
        for alias, info in _list_dense_infos(definition):
            try:
                actual = graph.get_tensor_by_name(info.name).dtype.base_dtype
            except (KeyError, ValueError):
                left_out[name] = (
                    f"Signature {name} is left out: the graph has no tensor {info.name}, which it names as "
                    f"{alias}. Export the model again."
                )
                break
            if actual != _read_dtype(info):
                types.setdefault(name, {})[alias] = actual
    if len(left_out) == len(_list_signatures(meta_graph)):
        return _SignatureMismatches({}, {})
    return _SignatureMismatches(left_out, types)


def _correct_types(meta_graph: Any, types: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Declare tensors as the graph has them: nothing else can be fed or fetched. Tells of each."""
    for name, actual in types.items():
        for alias, info in _list_dense_infos(meta_graph.signature_def[name]):
            if alias in actual and _read_dtype(info) != actual[alias]:
                yield (
                    f"Signature {name} declares {alias} as {_read_dtype(info).name}, but {info.name} is "
                    f"{actual[alias].name}: it is served as {actual[alias].name}."
                )
                info.dtype = actual[alias].as_datatype_enum


def _list_dense_infos(definition: Any) -> list[tuple[str, Any]]:
    """The dense inputs and outputs of a signature by their aliases."""
    infos = (*sorted(definition.inputs.items()), *sorted(definition.outputs.items()))
    return [(alias, info) for alias, info in infos if _is_dense(info)]


def _is_no_op(op: Any) -> bool:
    """Whether an op does nothing, itself or by what it waits for."""
    return isinstance(op, tf.Operation) and op.type == "NoOp" and not op.control_inputs


def _add_placeholders(
    definitions: Mapping[str, Any], names: Mapping[str, signature_separation.TensorNames]
) -> tuple[dict[str, dict[str, FeedNames]], dict[str, Any]]:
    """The placeholder to feed for each dense input of each signature, and what takes which tensor's place."""
    feeds: dict[str, dict[str, FeedNames]] = {name: {} for name in definitions}
    placeholders: dict[str, FeedNames] = {}
    inputs: dict[str, Any] = {}
    for name, definition in definitions.items():
        for info in filter(_is_dense, definition.inputs.values()):
            tensor = names[name].get(info.name, info.name)
            if tensor not in placeholders:
                placeholder = tf.compat.v1.placeholder(_read_dtype(info), name="pilotlight_feed")
                inputs[tensor] = tf.ensure_shape(placeholder, info.tensor_shape, name="pilotlight_input")
                placeholders[tensor] = FeedNames(placeholder.name, inputs[tensor].name)
            feeds[name][info.name] = placeholders[tensor]
    return feeds, inputs


def _hide_captured_constants(graph: Any) -> None:
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


def _to_load_error(error: BaseException, model_dir: Path) -> LoadFailed:
    causes = list(_causes(error))
    whole = "\n".join(map(str, causes))
    if unknown := _UNKNOWN_OP.search(whole):
        return LoadFailed(
            f"The graph uses the op {unknown[1]}, which TensorFlow {tf.__version__} does not have. "
            "Put the library of a custom op into assets.extra/ as a .so file, or export the model again."
        )
    message = [summarize_error(cause, model_dir) for cause in causes]
    if message[0].startswith("Cannot parse file") or isinstance(error, UnicodeDecodeError):
        return LoadFailed(
            "saved_model.pb or saved_model.pbtxt is cut short or is not a SavedModel. "
            "Copy the exported folder again."
        )
    reason = next((text for text in message if not text.startswith(_NO_REASON)), message[0])
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


def _to_columns(tensors: Arrays) -> Arrays:
    """The tensors of a request as columns: one without a batch dimension is repeated for every row."""
    count = next((len(array) for array in tensors.values() if array.ndim), 1)
    return {alias: array if array.ndim else np.repeat(array, count) for alias, array in tensors.items()}


@contextlib.contextmanager
def _without_deprecation_warnings() -> Iterator[None]:
    """Without TensorFlow's advice that a function is deprecated."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
