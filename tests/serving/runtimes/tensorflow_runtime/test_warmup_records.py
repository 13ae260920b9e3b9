"""Requests that a model brings to warm up with, as TensorFlow Serving records them."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.runtimes.tensorflow_runtime import warmup_records
from tests.serving.runtimes.tensorflow_runtime.saved_models import assert_same, normal, strings


@pytest.fixture
def recorded(tf: Any, models: Any, load: Any, tmp_path: Path) -> Callable[..., Any]:
    """The runtime of a model with these records as its warm-up file."""

    def runtime(model: str, *records: bytes, damage: int = 0) -> Any:
        folder = shutil.copytree(models(model), tmp_path / "recorded")
        path = folder / warmup_records.WARMUP_FILE
        path.parent.mkdir()
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        if damage:
            path.write_bytes(path.read_bytes()[:-damage])
        return load(folder)

    return runtime


def log() -> Any:
    """A record as the package of TensorFlow Serving writes it."""
    from tensorflow_serving.apis import prediction_log_pb2

    return prediction_log_pb2.PredictionLog()


def record(signature: str, **inputs: Any) -> bytes:
    import tensorflow

    made = log()
    request = made.predict_log.request
    request.model_spec.signature_name = signature
    for alias, value in inputs.items():
        request.inputs[alias].CopyFrom(tensorflow.make_tensor_proto(value))
    written: bytes = made.SerializeToString()
    return written


def test_recorded_requests(recorded: Any) -> None:
    runtime = recorded(
        "default_v1",
        record("", x=normal(2, 16, 32), word=[b"dog", b"cow"]),
        record("lookup", word=[b"cat"]),
    )

    (first, no_parameters), (second, parameters) = runtime.warmup_requests()

    assert no_parameters == {}
    assert_same(first, {"x": normal(2, 16, 32), "word": strings(b"dog", b"cow")})
    assert set(runtime.predict(first)) == {"y", "word"}
    assert parameters == {"signature_name": "lookup"}
    assert runtime.predict(second, **parameters)["id"].tolist() == [0]


def test_a_recorded_input_without_dimension_is_repeated(recorded: Any) -> None:
    runtime = recorded("scalar_input", record("", x=normal(3, 2), scale=np.float32(2), unit=b"m"))

    ((instances, _),) = runtime.warmup_requests()

    assert instances["scale"].tolist() == [2, 2, 2]
    np.testing.assert_array_equal(runtime.predict(instances)["y"], normal(3, 2) * 2)


def test_no_file_no_requests(load: Any) -> None:
    assert list(load("dense").warmup_requests()) == []


def test_what_a_damaged_file_has_before_is_used(recorded: Any) -> None:
    """And the version's owner is warned."""
    good = record("", x=normal(1, 30))
    runtime = recorded("dense", good, good, damage=3)

    assert len(list(runtime.warmup_requests())) == len(list(runtime.warmup_requests())) == 1
    (warning,) = runtime.warnings
    assert "tf_serving_warmup_requests: The file is damaged, the rest of it is not used" in warning


@pytest.mark.parametrize(
    "bad", [b"\xff\xff", b"\x32\x07\x0a\x05\x12\x03\x0a\x01x\x12\xff"], ids=["not a log", "bad length"]
)
def test_a_record_that_cannot_be_read_costs_no_other(recorded: Any, bad: bytes) -> None:
    """The version's owner is warned of how many there are, and of the first."""
    made = log()
    made.predict_log.request.inputs["x"].dtype = 77
    good = record("", x=normal(1, 30))
    runtime = recorded("dense", good, bad, made.SerializeToString(), good)

    assert len(list(runtime.warmup_requests())) == 2
    (warning,) = runtime.warnings
    assert "Records that cannot be read are not used: 2, as record 2: " in warning


def test_recorded_examples(tf: Any, recorded: Any) -> None:
    """Those of classify, regress and both at once, as their signatures take them; a context is in each."""
    example = tf.train.Example()
    example.features.feature["word"].bytes_list.value.append(b"dog")
    context = tf.train.Example()
    context.features.feature["weight"].float_list.value.append(2)
    classify, regress, both = log(), log(), log()
    for request in (classify.classify_log.request, regress.regress_log.request):
        request.input.example_list.examples.append(example)
    classify.classify_log.request.model_spec.signature_name = "lookup"
    for name in ("lookup", ""):
        both.multi_inference_log.request.tasks.add().model_spec.signature_name = name
    given = both.multi_inference_log.request.input.example_list_with_context
    given.examples.append(example)
    given.context.CopyFrom(context)

    runtime = recorded("default_v1", *(one.SerializeToString() for one in (classify, regress, both)))
    (lookup, named), (default, unnamed), (shared, several) = runtime.warmup_requests()

    assert_same(lookup, {"word": strings(example.SerializeToString())})
    assert named == {"signature_name": "lookup"}
    assert sorted(default) == ["word", "x"]
    assert unnamed == {}
    assert several == {"signature_names": ("lookup", "")}
    merged = tf.train.Example.FromString(shared["inputs"][0])
    assert sorted(merged.features.feature) == ["weight", "word"]
    assert runtime.predict(shared, signature_names=("lookup",))["lookup/id"].shape == (1,)


def test_sessions_and_streams_are_left_out_aloud(recorded: Any, caplog: pytest.LogCaptureFixture) -> None:
    session, stream = log(), log()
    session.session_run_log.SetInParent()
    stream.predict_streamed_log.SetInParent()
    records = [session.SerializeToString(), record("", x=normal(1, 30)), stream.SerializeToString()]

    with caplog.at_level(logging.WARNING):
        requests = list(recorded("dense", *records).warmup_requests())

    assert len(requests) == 1
    assert "2 records are sessions or streams and are not used" in caplog.text


def test_at_most_a_thousand_requests(
    recorded: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warmup_records.MAX_RECORDS == 1000
    monkeypatch.setattr(warmup_records, "MAX_RECORDS", 3)

    with caplog.at_level(logging.WARNING):
        assert len(list(recorded("dense", *[record("", x=normal(1, 30))] * 4).warmup_requests())) == 3

    assert "more than 3 records" in caplog.text
