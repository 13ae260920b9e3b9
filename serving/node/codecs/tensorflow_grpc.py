"""TensorFlow Serving's gRPC API: Predict, Classify, Regress and MultiInference of its PredictionService.

Predict serves every kind of model; the others take tf.Example messages, as only TensorFlow models do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from serving.errors import InvalidArgument, InvalidInputs, ServingError
from serving.http_headers import PROTOBUF
from serving.node.codecs import Codec, DecodedRequest, Reply, RequestMetadata, ServedModel
from serving.node.codecs.classify_regress import (
    CLASSIFY,
    Arrays,
    check_context_size,
    examples_to_batch,
    extract_classifications,
    extract_regressions,
    find_examples_input,
)
from serving.node.codecs.tensor_mapping import (
    batch_to_tensors,
    check_request_counts,
    find_signature,
    tensors_to_batch,
)
from serving.node.codecs.tensorproto import decode_tensors, encode_tensors
from serving.node.codecs.zero_copy import extract_contents
from serving.protocols.errors import render_error
from serving.protocols.protos import MessageDecodeError, load_message_class, serialize_input_examples
from serving.runtimes.instance_batch import Batch

_T = TypeVar("_T")

_SERVING = "tensorflow.serving."
_PREDICT = load_message_class(_SERVING + "PredictRequest")
_PREDICTED = load_message_class(_SERVING + "PredictResponse")
_CLASSIFICATION = load_message_class(_SERVING + "ClassificationRequest")
_CLASSIFIED = load_message_class(_SERVING + "ClassificationResponse")
_REGRESSION = load_message_class(_SERVING + "RegressionRequest")
_REGRESSED = load_message_class(_SERVING + "RegressionResponse")
_MULTI = load_message_class(_SERVING + "MultiInferenceRequest")
_INFERRED = load_message_class(_SERVING + "MultiInferenceResponse")
_MODEL_SPEC = load_message_class(_SERVING + "ModelSpec")

# More would keep a node busy for seconds: an empty example takes two bytes.
_MAX_EXAMPLES = 1 << 20
_PROTOBUF = ((b"content-type", PROTOBUF.encode()),)
# The fields of messages that are read and written by hand.
_INPUTS = _PREDICT.DESCRIPTOR.fields_by_name["inputs"].number
_OUTPUTS = _PREDICTED.DESCRIPTOR.fields_by_name["outputs"].number
_METHODS = {"tensorflow/serving/classify": "classify", "tensorflow/serving/regress": "regress"}


def create_codec(call: RequestMetadata, model: ServedModel) -> Codec:
    return _CODECS[call.verb](call, model)


class _GrpcCodec:
    """What the codecs of all verbs share."""

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        self._call = call
        self._model = model

    def encode_error(self, error: ServingError) -> Reply:
        return render_error(error, self._call.dialect)

    def _make_model_spec(self, signature: str) -> Any:
        """The model, version and signature that answer."""
        spec = _MODEL_SPEC(name=self._call.model, signature_name=signature or self._model.schema.default)
        if self._call.version.isdecimal():
            spec.version.value = int(self._call.version)
        return spec


class _PredictCodec(_GrpcCodec):
    """Tensors in, tensors out. The state is the signature, and the requested outputs, () for all."""

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        slim, contents = extract_contents(body, _INPUTS)
        request = _parse_message(_PREDICT, slim)
        check_request_counts(request.inputs, request.output_filter)
        signature = request.model_spec.signature_name
        requested = tuple(request.output_filter)
        if requested and self._model.schema.strict:
            self._check_outputs(signature, requested)
        instances, parameters = tensors_to_batch(
            self._model, decode_tensors(request.inputs, contents), signature
        )
        return DecodedRequest(instances, parameters, (signature, requested))

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        signature, requested = decoded.state
        outputs = batch_to_tensors(predictions)
        if requested:
            outputs = _filter_outputs(outputs, requested)
        spec = _PREDICTED(model_spec=self._make_model_spec(signature)).SerializeToString()
        return Reply(200, b"".join([*encode_tensors(outputs, _OUTPUTS), spec]), _PROTOBUF)

    def _check_outputs(self, signature: str, requested: Sequence[str]) -> None:
        outputs = find_signature(self._model, signature).outputs
        _filter_outputs({output.name: output for output in outputs}, requested)
        if len(set(requested)) < len(requested):
            raise InvalidInputs("output_filter names an output twice.")


class _ExamplesCodec(_GrpcCodec):
    """Examples in; classes with scores, or numbers out. The state is the signature, and their number."""

    def __init__(self, call: RequestMetadata, model: ServedModel) -> None:
        super().__init__(call, model)
        self._message, self._answer = {
            "classify": (_CLASSIFICATION, _CLASSIFIED),
            "regress": (_REGRESSION, _REGRESSED),
        }[call.verb]

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        request = _parse_message(self._message, body)
        signature = request.model_spec.signature_name
        examples = _read_examples(request.input)
        instances, parameters = examples_to_batch(self._model, self._call.verb, signature, examples)
        return DecodedRequest(instances, parameters, (signature, len(examples)))

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        signature, count = decoded.state
        answer = self._answer(model_spec=self._make_model_spec(signature))
        _FILL_RESULT[self._call.verb](answer.result, batch_to_tensors(predictions), count)
        return Reply(200, answer.SerializeToString(), _PROTOBUF)


class _MultiInferenceCodec(_GrpcCodec):
    """Examples in; for each task what its signature answers. The state is the tasks, and their number."""

    def decode_request(self, body: bytes | bytearray) -> DecodedRequest:
        request = _parse_message(_MULTI, body)
        tasks = [(_parse_verb(task.method_name), task.model_spec.signature_name) for task in request.tasks]
        if not tasks:
            raise InvalidInputs("The request has no tasks.")
        names = tuple(signature or self._model.schema.default for _, signature in tasks)
        if len(set(names)) < len(names):
            raise InvalidInputs(f"Two tasks have the same signature; they name {', '.join(names)}.")
        for verb, signature in tasks:
            find_examples_input(self._model, verb, signature)
        examples = _read_examples(request.input)
        instances, _ = examples_to_batch(self._model, *tasks[0], examples)
        return DecodedRequest(instances, {"signature_names": names}, (tasks, len(examples)))

    def encode_response(self, decoded: DecodedRequest, predictions: Batch) -> Reply:
        """The result of each task, in their order."""
        tasks, count = decoded.state
        outputs = batch_to_tensors(predictions)
        answer = _INFERRED()
        for verb, signature in tasks:
            spec = self._make_model_spec(signature)
            result = answer.results.add(model_spec=spec)
            prefix = f"{spec.signature_name}/"
            own = {
                name.removeprefix(prefix): array for name, array in outputs.items() if name.startswith(prefix)
            }
            part = result.classification_result if verb == CLASSIFY else result.regression_result
            part.SetInParent()
            _FILL_RESULT[verb](part, own, count)
        return Reply(200, answer.SerializeToString(), _PROTOBUF)


_CODECS: Mapping[str, Callable[[RequestMetadata, ServedModel], Codec]] = {
    "predict": _PredictCodec,
    "classify": _ExamplesCodec,
    "regress": _ExamplesCodec,
    "multi-inference": _MultiInferenceCodec,
}


def _parse_message(kind: Any, body: bytes | bytearray) -> Any:
    """The message in a body. Raises InvalidArgument."""
    try:
        return kind.FromString(bytes(body))
    except MessageDecodeError as error:
        raise InvalidArgument(
            f"The message cannot be read as {kind.DESCRIPTOR.full_name}: it is damaged or cut short."
        ) from error


def _read_examples(given: Any) -> list[bytes]:
    """The examples of a request. Raises InvalidInputs."""
    count = max(len(given.example_list.examples), len(given.example_list_with_context.examples))
    if count > _MAX_EXAMPLES:
        raise InvalidInputs(f"The request has {count} examples; it can have {_MAX_EXAMPLES}.")
    check_context_size(given.example_list_with_context.context.ByteSize(), count)
    return serialize_input_examples(given)


def _filter_outputs(outputs: Mapping[str, _T], requested: Sequence[str]) -> dict[str, _T]:
    """The requested outputs. Raises InvalidInputs if one does not exist."""
    for name in requested:
        if name not in outputs:
            raise InvalidInputs(
                f"output_filter names {name}, which is no output; there are: {', '.join(outputs)}."
            )
    return {name: outputs[name] for name in requested}


def _parse_verb(method: str) -> str:
    try:
        return _METHODS[method]
    except KeyError:
        raise InvalidInputs(
            f"A task has the method_name {method!r}; it can be one of {', '.join(_METHODS)}."
        ) from None


def _fill_classes(result: Any, answer: Arrays, count: int) -> None:
    for scored in extract_classifications(answer, count):
        classes = result.classifications.add().classes
        for label, score in scored:
            classes.add(label=_decode_label(label), score=score)


def _fill_values(result: Any, answer: Arrays, count: int) -> None:
    for value in extract_regressions(answer, count).tolist():
        result.regressions.add(value=value)


_FILL_RESULT: Mapping[str, Callable[[Any, Arrays, int], None]] = {
    "classify": _fill_classes,
    "regress": _fill_values,
}


def _decode_label(label: bytes) -> str:
    return label.decode(errors="replace")
