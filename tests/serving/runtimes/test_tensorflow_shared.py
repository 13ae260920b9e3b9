"""Signatures that share tensors, as TensorFlow 1 exported them: each is computed as a session computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from serving.errors import InvalidInputs, LoadFailed
from serving.node.codecs import CodecCache, RequestMetadata, ServedModel
from serving.protocols import Dialect
from serving.protocols.protos import load_message_class
from serving.runtimes import LoadSpec
from serving.runtimes.json_codec import InstancesDecoder

Parts = dict[str, Any]
Build = Callable[[Any], Mapping[str, tuple[Parts, Parts]]]


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def export(
    tf: Any, folder: Path, build: Build, change: Callable[[Any], None] = lambda signatures: None
) -> None:
    """A SavedModel of version 1 with signatures of inputs and outputs; `change` may spoil them."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        signatures = {name: v1.saved_model.predict_signature_def(*parts) for name, parts in build(tf).items()}
        change(signatures)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(str(folder))
        tables = v1.tables_initializer()
        builder.add_meta_graph_and_variables(session, ["serve"], signatures, main_op=tables)
        builder.save()


def answer(tf: Any, folder: Path, signature: str, inputs: Parts) -> Parts:
    """What a session answers that has nothing but the model in it."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        definition = v1.saved_model.load(session, ["serve"], str(folder)).signature_def[signature]
        fetches = {alias: info.name for alias, info in definition.outputs.items()}
        feeds = {definition.inputs[alias].name: value for alias, value in inputs.items()}
        found: Parts = session.run(fetches, feeds)
        return found


def autoencoder(tf: Any) -> Mapping[str, tuple[Parts, Parts]]:
    """The code is an output, an intermediate and an input."""
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [None, 6], "x")
    code = tf.nn.relu(x @ v1.get_variable("encoder", initializer=normal(6, 3)), name="code")
    y = tf.sigmoid(code @ v1.get_variable("decoder", initializer=normal(3, 6)))
    return {
        "encode": ({"x": x}, {"code": code}),
        "decode": ({"code": code}, {"y": y}),
        "serving_default": ({"x": x}, {"y": y, "code": code, "same": x}),
    }


def classifier(tf: Any) -> Mapping[str, tuple[Parts, Parts]]:
    """The tutorial on MNIST: examples for one signature, what is parsed of them for the default one."""
    v1 = tf.compat.v1
    examples = v1.placeholder(tf.string, name="tf_example")
    parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([4], tf.float32)})
    x = tf.identity(parsed["x"], name="x")
    scores = tf.nn.softmax(x @ v1.get_variable("w", initializer=normal(4, 3)))
    values, indices = tf.math.top_k(scores, 3)
    keys = tf.constant([0, 1, 2], tf.int64)
    words = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, tf.constant(["a", "b", "c"])), "?"
    )
    labels = words.lookup(tf.cast(indices, tf.int64))
    return {
        "predict_images": ({"images": x}, {"scores": scores}),
        "serving_default": ({"inputs": examples}, {"classes": labels, "scores": values}),
    }


def with_default(tf: Any) -> Mapping[str, tuple[Parts, Parts]]:
    """A tensor with a default that one signature feeds."""
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, [None, 2], "x")
    scale = v1.placeholder_with_default(tf.constant(2.0), [], "scale")
    y = x * scale
    return {"scaled": ({"x": x, "scale": scale}, {"y": y}), "serving_default": ({"x": x}, {"y": y})}


def loop(tf: Any) -> Mapping[str, tuple[Parts, Parts]]:
    """An old loop in what is computed twice."""
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    x = v1.placeholder(tf.float32, [None, 2], "x")
    middle = tf.identity(x + 1, "middle")
    _, y = v1.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 1.5 + middle), (0, middle))
    return {"rest": ({"middle": middle}, {"y": y}), "serving_default": ({"x": x}, {"y": y})}


def examples(tf: Any) -> NDArray[Any]:
    def example(row: Any) -> bytes:
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=row))
        one: bytes = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
        return one

    return np.array([example(row) for row in normal(3, 4)], object)


@pytest.mark.parametrize(
    ("build", "signature", "inputs"),
    [
        (autoencoder, "encode", {"x": normal(3, 6)}),
        (autoencoder, "decode", {"code": normal(3, 3)}),
        (autoencoder, "serving_default", {"x": normal(3, 6)}),
        (classifier, "predict_images", {"images": normal(3, 4)}),
        (classifier, "serving_default", {"inputs": examples}),
        (with_default, "serving_default", {"x": normal(3, 2)}),
        (loop, "rest", {"middle": normal(3, 2)}),
        (loop, "serving_default", {"x": normal(3, 2)}),
    ],
)
def test_signatures_that_share_tensors_answer_each_for_itself(
    tf: Any, tmp_path: Path, build: Build, signature: str, inputs: Parts
) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    export(tf, tmp_path, build)
    instances = {alias: value(tf) if callable(value) else value for alias, value in inputs.items()}
    runtime = load_model(LoadSpec(tmp_path))

    found = runtime.predict(instances, signature_name=signature)

    wanted = answer(tf, tmp_path, signature, instances)
    assert isinstance(found, dict)
    assert found.keys() == wanted.keys()
    for alias, column in found.items():
        np.testing.assert_array_equal(column, wanted[alias], strict=True)
    assert not runtime.warnings


def test_the_schema_has_the_names_that_were_saved(tf: Any, tmp_path: Path) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    export(tf, tmp_path, autoencoder)
    signature = load_model(LoadSpec(tmp_path)).infer_schema().signatures["serving_default"]
    assert [one.tensor for one in signature.inputs] == ["x:0"]
    assert "code:0" in [one.tensor for one in signature.outputs]


def test_a_signature_of_what_is_not_there_is_left_out_with_a_warning(tf: Any, tmp_path: Path) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    export(
        tf,
        tmp_path,
        classifier,
        lambda signatures: setattr(signatures["predict_images"].inputs["images"], "name", "gone:0"),
    )

    runtime = load_model(LoadSpec(tmp_path))

    (warning,) = runtime.warnings
    assert "Signature predict_images is left out" in warning
    assert "has no tensor gone:0" in warning
    with pytest.raises(InvalidInputs, match="has no tensor gone:0"):
        runtime.input_format({"signature_name": "predict_images"})
    found = runtime.predict({"inputs": examples(tf)}, signature_name="serving_default")
    assert isinstance(found, dict)
    wanted = answer(tf, tmp_path, "serving_default", {"inputs": examples(tf)})
    np.testing.assert_array_equal(found["classes"], wanted["classes"])


def test_a_type_that_is_declared_wrongly_is_that_of_the_graph(tf: Any, tmp_path: Path) -> None:
    """As TensorFlow Serving answers it; the owner is told."""
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    export(tf, tmp_path / "right", classifier)
    export(
        tf,
        tmp_path / "wrong",
        classifier,
        lambda signatures: setattr(signatures["serving_default"].inputs["inputs"], "dtype", 1),
    )
    asked = {"inputs": examples(tf)}

    right, wrong = (load_model(LoadSpec(tmp_path / name)) for name in ("right", "wrong"))

    (warning,) = wrong.warnings
    assert "Signature serving_default declares inputs as float32, but " in warning
    assert warning.endswith("is string: it is served as string.")
    assert wrong.infer_schema().signatures == right.infer_schema().signatures
    found, wanted = (runtime.predict(asked, signature_name="serving_default") for runtime in (wrong, right))
    assert isinstance(found, dict) and isinstance(wanted, dict)
    np.testing.assert_array_equal(found["classes"], wanted["classes"])


def spectrum(tf: Any) -> Mapping[str, tuple[Parts, Parts]]:
    x = tf.compat.v1.placeholder(tf.float32, [None, 4], "x")
    y = tf.signal.fft(tf.cast(x, tf.complex64))
    return {"serving_default": ({"x": x}, {"y": y}), "power": ({"x": x}, {"power": tf.abs(y)})}


def requests_for(signature: str) -> Iterator[tuple[Dialect, bytes]]:
    """A request for a signature, in each protocol that has tensors."""
    predict = load_message_class("tensorflow.serving.PredictRequest")()
    predict.model_spec.signature_name = signature
    yield Dialect.TENSORFLOW_GRPC, predict.SerializeToString()
    infer = load_message_class("inference.ModelInferRequest")()
    infer.parameters["signature_name"].string_param = signature
    yield Dialect.INFERENCE_GRPC, infer.SerializeToString()
    yield Dialect.INFERENCE, orjson.dumps({"inputs": [], "parameters": {"signature_name": signature}})
    yield Dialect.TENSORFLOW, orjson.dumps({"inputs": {}, "signature_name": signature})


def test_a_signature_of_complex_numbers_is_left_out_with_a_warning(tf: Any, tmp_path: Path) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    export(tf, tmp_path, spectrum)

    runtime = load_model(LoadSpec(tmp_path))

    (warning,) = runtime.warnings
    assert "Signature serving_default is left out: it has complex numbers" in warning
    assert "as y (complex64). Export it with their real and imaginary parts." in warning
    with pytest.raises(InvalidInputs, match="complex numbers"):
        runtime.input_format({"signature_name": "serving_default"})
    model = ServedModel(runtime, runtime.infer_schema(), InstancesDecoder())
    for dialect, request in requests_for("serving_default"):
        reader = CodecCache(model).get_or_create(
            RequestMetadata(dialect, "infer" if "INFERENCE" in dialect.name else "predict")
        )
        with pytest.raises(InvalidInputs, match="complex numbers"):
            reader.decode_request(request)
    found = runtime.predict({"x": normal(3, 4)}, signature_name="power")
    assert isinstance(found, dict)
    np.testing.assert_array_equal(found["power"], answer(tf, tmp_path, "power", {"x": normal(3, 4)})["power"])


def test_nothing_but_complex_numbers_is_a_failure_to_load(tf: Any, tmp_path: Path) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    def build(tf: Any) -> Mapping[str, tuple[Parts, Parts]]:
        return {"serving_default": spectrum(tf)["serving_default"]}

    export(tf, tmp_path, build)

    with pytest.raises(LoadFailed, match=r"complex numbers, for which there is no JSON, as y \(complex64\)"):
        load_model(LoadSpec(tmp_path))
