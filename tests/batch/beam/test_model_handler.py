"""Runtimes as Beam's model handler."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from batch.beam.model_handler import RuntimeHandler, SharedModel
from batch.failures import StepFailed, extract_failure
from batch.messages import ModelSource
from batch.records.blocks import BatchedBlock, RecordBlock
from batch.records.decode import RecordDecoder
from serving.errors import InvalidInputs, ModelFailed
from serving.frameworks import find_user_code_framework, load_frameworks
from serving.model_schema import ModelSchema
from serving.runtimes import InputFormat, LoadSpec, RowsFormat, Runtime, load_model
from serving.runtimes.instance_batch import Batch, count_rows
from serving.runtimes.json_codec import InstancesDecoder, encode_lines, encode_predictions
from serving.runtimes.schema_inference import unknown_schema
from tests.batch.models import BUILDERS, LABELS, X, build_xgboost
from tests.serving.runtimes.test_tensorflow_shared import export

NOWHERE = SharedModel(ModelSource(), "", 0)

ROUTINE = '''
    class Routine:
        """Fails for all of a batch when one instance is negative; changes what it is given."""

        @classmethod
        def from_path(cls, model_dir):
            return cls()

        def predict(self, instances, **kwargs):
            for instance in instances:
                instance["x"] *= 2
            if any(instance["x"] < 0 for instance in instances):
                instances.clear()
                raise ValueError("negative")
            return [instance["x"] for instance in instances]
'''


def values(found: Any) -> list[Any]:
    """The predictions of all parts, one after the other."""
    return [value for part in found.parts for value in part]


class Fake:
    """A runtime that answers each batch by `answer`, and notes how many rows it was given."""

    framework = find_user_code_framework()
    mergeable = False
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, answer: Callable[[list[Any]], Any] = list) -> None:
        self._answer = answer
        self.calls: list[int] = []
        self.parameters: list[dict[str, Any]] = []

    def input_format(self, _: Mapping[str, Any]) -> InputFormat:
        return RowsFormat()

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        self.calls.append(len(instances))
        self.parameters.append(parameters)
        answer: Batch = self._answer(instances)
        return answer

    def make_synthetic_rows(self, _: int) -> None:
        return None

    def warmup_requests(self) -> Iterable[tuple[Batch, dict[str, Any]]]:
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        return unknown_schema("fake")


def block(*rows: Any) -> RecordBlock:
    return RecordBlock(0, 5, "/in/file", 0, b"\n".join(json.dumps(row).encode() for row in rows))


def predicted(
    given: BatchedBlock | RecordBlock,
    runtime: Runtime,
    *,
    rows: int = 0,
    parameters: Mapping[str, Any] | None = None,
) -> BatchedBlock:
    """What the handler makes of a block."""
    parameters = parameters or {}
    if isinstance(given, RecordBlock):
        given = RecordDecoder(runtime.input_format(parameters)).decode(given)
    (result,) = RuntimeHandler(NOWHERE, parameters, rows).run_inference([given], runtime)
    assert result.example == given.block.index
    return cast(BatchedBlock, result.inference)


def texts(batches: BatchedBlock) -> list[bytes]:
    return b"".join(encode_lines(part) for part in batches.parts).splitlines()


def lines_of(found: BatchedBlock) -> list[int]:
    return list(range(len(found.block.split_records())) if found.rows is None else found.rows)


# ---- how many rows a call has


@pytest.mark.parametrize(
    ("asked", "framework", "mergeable", "calls"),
    [
        (0, "CUSTOM", False, [64] * 15 + [40]),
        (0, "TENSORFLOW", True, [64] * 15 + [40]),
        (0, "SCIKIT_LEARN", True, [1000]),
        (0, "SCIKIT_LEARN", False, [64] * 15 + [40]),
        (0, "XGBOOST", True, [1000]),
        (300, "XGBOOST", True, [300, 300, 300, 100]),
        (5000, "CUSTOM", False, [1000]),
        (1, "CUSTOM", False, [1] * 1000),
    ],
)
def test_rows_of_a_call(asked: int, framework: str, mergeable: bool, calls: list[int]) -> None:
    """As many as asked for; else 64, or 1024 where the model is known to be fast and to mix no rows."""
    runtime = Fake()
    runtime.framework, runtime.mergeable = load_frameworks()[framework], mergeable
    found = predicted(block(*range(1000)), runtime, rows=asked)

    assert runtime.calls == calls
    assert values(found) == list(range(1000))


def test_parameters_reach_the_model() -> None:
    """The signature's name, for one."""
    runtime = Fake()
    predicted(block(1, 2), runtime, parameters={"signature_name": "s"})

    assert runtime.parameters == [{"signature_name": "s"}]


def test_a_block_without_records() -> None:
    """The end of a shard passes, and the model is not called."""
    runtime = Fake()
    found = predicted(RecordBlock(0, 9, last=True), runtime)

    assert (found.block.last, found.parts, found.rejected, runtime.calls) == (True, (), (), [])


# ---- rows that fail


def fails_on(wrong: set[int]) -> Callable[[list[Any]], list[Any]]:
    def answer(instances: list[Any]) -> list[Any]:
        if found := wrong & set(instances):
            raise ValueError(f"wrong: {min(found)}")
        return [10 * instance for instance in instances]

    return answer


@given(st.sets(st.integers(0, 59)), st.integers(1, 70))
def test_exactly_the_failing_rows_are_bad(wrong: set[int], rows: int) -> None:
    """Whatever rows a model fails on, all others get their predictions; each error says its row's reason."""
    found = predicted(block(*range(60)), Fake(fails_on(wrong)), rows=rows)

    good = [number for number in range(60) if number not in wrong]
    assert values(found) == [10 * number for number in good]
    assert lines_of(found) == good
    assert [one.snippet for one in found.rejected] == [str(number) for number in sorted(wrong)]
    assert [one.reason for one in found.rejected] == [
        f"Failed to run the provided model: ValueError: wrong: {number} (Error code: 2)"
        for number in sorted(wrong)
    ]


def test_failing_rows_beside_malformed_ones() -> None:
    """Both are bad, in the order of their places; keys stay with their rows."""
    lines = [b'{"id": "a", "instance": 1}', b"oops", b'{"id": "b", "instance": 2}', b"{}", b""]
    lines += [b'{"id": "c", "instance": 3}']
    decoded = RecordDecoder(RowsFormat(), ["id"]).decode(RecordBlock(0, 0, "/f", 0, b"\n".join(lines)))
    found = predicted(decoded, Fake(fails_on({2})))

    assert values(found) == [10, 30]
    assert found.keys == [{"id": "a"}, {"id": "c"}]
    assert lines_of(found) == [0, 5]
    assert [one.snippet for one in found.rejected] == ["oops", lines[2].decode(), "{}"]


def test_a_failing_row_costs_few_calls() -> None:
    """One bad row of 64 is found by halving."""
    runtime = Fake(fails_on({17}))
    predicted(block(*range(64)), runtime)

    assert len(runtime.calls) == 13


@pytest.mark.parametrize("times", [0, 2, 5])
def test_too_few_or_too_many_predictions(times: int) -> None:
    """A row that a model gives another number of predictions for has none; the rows beside it have theirs."""

    def answer(instances: list[Any]) -> list[Any]:
        return [one for instance in instances for one in [instance] * (times if instance == "x" else 1)]

    found = predicted(block("a", "x", "b"), Fake(answer))

    assert values(found) == ["a", "b"]
    assert lines_of(found) == [0, 2]
    assert f"gave {times} predictions for 1 instances" in found.rejected[0].reason


def test_errors_of_the_runtime_keep_their_words() -> None:
    """What the runtime says of an instance is the reason."""

    def answer(_: list[Any]) -> list[Any]:
        raise InvalidInputs("No such word.")

    found = predicted(block("a"), Fake(answer))

    assert found.rejected[0].reason == "Invalid inputs: No such word. (Error code: 1)"


def test_a_row_whose_error_is_no_exception() -> None:
    """It is bad like any other; only whoever interrupts the process ends the job."""

    def answer(instances: list[Any]) -> list[Any]:
        if "panic" in instances:
            raise GeneratorExit("here")
        if "interrupt" in instances:
            raise KeyboardInterrupt
        return instances

    found = predicted(block("a", "panic", "b"), Fake(answer))
    assert values(found) == ["a", "b"]
    assert found.rejected[0].reason == "Failed to run the provided model: GeneratorExit: here (Error code: 2)"
    with pytest.raises(KeyboardInterrupt):
        predicted(block("interrupt"), Fake(answer))


@pytest.mark.parametrize("wrapped", [False, True])
def test_memory_that_is_short_is_no_bad_record(wrapped: bool) -> None:
    """MemoryError is passed on, out of the runtime's own error too: the rows are not at fault."""

    def answer(_: list[Any]) -> list[Any]:
        if wrapped:
            raise ModelFailed("Exception during custom prediction: MemoryError") from MemoryError()
        raise MemoryError

    with pytest.raises(MemoryError):
        predicted(block("a", "b"), Fake(answer))


# ---- real models


@pytest.fixture
def routine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[ModelSource]:
    """The routine above, in a package folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "batch_routine.py").write_text(textwrap.dedent(ROUTINE))
    yield ModelSource(
        prediction_class="batch_routine.Routine", packages=(str(tmp_path / "packages"),), framework="CUSTOM"
    )
    sys.modules.pop("batch_routine", None)


def test_a_routine_that_fails_for_the_whole_batch(routine: ModelSource) -> None:
    """Only the row at fault is bad, and what the routine did to the others before does not count twice."""
    handler = RuntimeHandler(SharedModel(routine, "", 0), {}, 0)
    runtime = handler.load_model()
    rows = [{"x": number} for number in (1, 2, -3, 4, 5, 6)]
    found = predicted(block(*rows), runtime)

    assert values(found) == [2, 4, 8, 10, 12]
    assert [one.snippet for one in found.rejected] == ['{"x": -3}']


def test_a_pipeline_that_works_in_place(tmp_path: Path) -> None:
    """A failing row does not have the rows beside it scaled twice."""
    scaler = StandardScaler(copy=False)
    pipeline = make_pipeline(scaler, RandomForestClassifier(5, random_state=0)).fit(X.copy(), LABELS)
    joblib.dump(pipeline, tmp_path / "model.joblib")
    rows = X[:20].tolist()
    expected = pipeline.predict(np.array(rows)).tolist()
    rows.insert(7, [1e300, 0, 0, 0])  # beyond the float32 of trees, which only the last step says
    runtime = load_model(LoadSpec(tmp_path))

    found = predicted(block(*rows), runtime)

    assert [one.offset for one in found.rejected] == [block(*rows).split_records()[7][0]]
    assert [value for part in found.parts for value in np.asarray(part).tolist()] == expected


@pytest.mark.parametrize("kind", ["xgboost", "sklearn", "tensorflow"])
def test_predictions_are_those_of_the_online_path(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same rows give the same JSON in one online request and in the calls of a batch job."""
    tf = request.getfixturevalue("tf") if kind == "tensorflow" else None
    BUILDERS[kind](tmp_path, tf)
    handler = RuntimeHandler(SharedModel(ModelSource(model_dir=str(tmp_path)), "", 0), {}, 50)
    runtime = handler.load_model()
    rows = X[:170].tolist()
    batch, _ = InstancesDecoder().decode(json.dumps({"instances": rows}).encode(), runtime.input_format)
    online = json.loads(encode_predictions(runtime.predict(batch)))["predictions"]

    found = predicted(block(*rows), runtime, rows=50)

    assert [count_rows(part) for part in found.parts] == [50, 50, 50, 20]
    got = [json.loads(text) for text in texts(found)]
    if runtime.exact:
        assert got == online
    else:
        for one, other in zip(got, online, strict=True):
            np.testing.assert_array_max_ulp(np.float32(one["y"]), np.float32(other["y"]), 4)
            assert one["name"] == other["name"]


def running_sums(tf: Any, shape: Any, *, unknown: bool = False) -> Any:
    """Sums of an input of a shape with all before them: rows that are not independent show."""
    v1 = tf.compat.v1
    x = v1.placeholder(tf.float32, None if unknown else shape)
    declared = tf.identity(x) if unknown else x
    if shape is not None:
        declared.set_shape(shape)
    y = declared * 2 if shape == [] else tf.cumsum(declared)
    return {"serving_default": ({"x": declared}, {"y": y})}


@pytest.mark.parametrize(
    ("shape", "unknown", "rows", "calls"),
    [
        pytest.param([None, 1], True, [1.0, 2.0, [3.0], [4.0, 5.0]], 4, id="declared, not enforced"),
        pytest.param(None, True, [[1.0], [2.0], [3.0]], 3, id="undeclared"),
        pytest.param(None, True, [1.0, 2.0, 3.0], 3, id="undeclared, scalar instances"),
        pytest.param([], False, [1.0, 2.0, 2.0], 3, id="scalar"),
        pytest.param([1, 1], False, [[1.0], [2.0], [3.0]], 3, id="one row"),
        pytest.param([1], True, [1.0, 2.0, 3.0], 3, id="one row, not enforced"),
    ],
)
def test_records_that_may_depend_on_each_other_are_predicted_as_online(
    tmp_path: Path, tf: Any, shape: Any, unknown: bool, rows: list[Any], calls: int
) -> None:
    """Each by itself, in as many calls as there are records and not one more."""
    export(tf, tmp_path, lambda tf: running_sums(tf, shape, unknown=unknown))
    runtime = load_model(LoadSpec(tmp_path))
    counting = Counting(runtime)
    online = []
    for row in rows:
        batch, _ = InstancesDecoder().decode(json.dumps({"instances": [row]}).encode(), runtime.input_format)
        online.append(json.loads(encode_predictions(runtime.predict(batch)))["predictions"][0])

    found = predicted(block(*rows), cast(Runtime, counting))

    assert [json.loads(text) for text in texts(found)] == online
    assert counting.calls == calls
    assert not found.rejected


def test_records_go_in_calls_of_as_many_as_the_model_takes(tmp_path: Path, tf: Any) -> None:
    """What is left over at the end has no result, and says why."""
    export(tf, tmp_path, lambda tf: running_sums(tf, [3, 1]))
    counting = Counting(load_model(LoadSpec(tmp_path)))
    found = predicted(block(*([number] for number in range(8))), cast(Runtime, counting), rows=64)

    assert [json.loads(text)["y"] for text in texts(found)] == [[0], [1], [3], [3], [7], [12]]
    assert [one.snippet for one in found.rejected] == ["[6]", "[7]"]
    assert "takes exactly 3 instance(s)" in found.rejected[0].reason
    assert counting.calls == 3


def test_calls_that_are_too_long_are_tried_once() -> None:
    """A graph may take fewer records than it declares; a block pays for that once."""

    def answer(instances: list[Any]) -> list[Any]:
        if len(instances) > 2:
            raise ValueError("too many")
        return instances

    runtime = Fake(answer)
    found = predicted(block(*range(128)), runtime)

    assert values(found) == list(range(128))
    assert runtime.calls[:7] == [64, 32, 16, 8, 4, 2, 2]
    assert set(runtime.calls[7:]) == {2}


class Counting:
    """A runtime that counts its calls."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        self.calls += 1
        return self._runtime.predict(instances, **parameters)


def test_a_routine_is_given_what_it_is_given_online(routine: ModelSource) -> None:
    """Plain values, and its answers come back in their order."""
    runtime = RuntimeHandler(SharedModel(routine, "", 0), {}, 0).load_model()
    rows = [{"x": number} for number in range(200)]
    found = predicted(block(*rows), runtime)

    assert values(found) == [2 * number for number in range(200)]


# ---- loading


def test_a_model_is_loaded_once() -> None:
    """Every step of a process gets the same one."""

    class Counted(SharedModel):
        loads = 0

        def _load_runtime(self) -> Runtime:
            Counted.loads += 1
            return Fake()

    model = Counted(ModelSource(), "", 0)
    handler = RuntimeHandler(model, {}, 0)

    assert handler.load_model() is model.load() is handler.load_model()
    assert Counted.loads == 1


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Beam is given an error that carries ours, with what to do."""
    (tmp_path / "model.joblib").write_bytes(b"no pickle")
    handler = RuntimeHandler(SharedModel(ModelSource(model_dir=str(tmp_path)), "", 0), {}, 0)

    with pytest.raises(StepFailed) as caught:
        handler.load_model()

    failed = extract_failure(str(caught.value))
    assert failed is not None
    assert failed.status == "INVALID_ARGUMENT"
    assert failed.message.startswith("Failed to load model: ")


def test_a_model_is_fetched_where_there_is_no_folder(tmp_path: Path) -> None:
    """By its URI."""
    (tmp_path / "model").mkdir()
    build_xgboost(tmp_path / "model", None)
    source = ModelSource(uri=str(tmp_path / "model"))
    runtime = SharedModel(source, str(tmp_path / "cache"), 1 << 30).load()

    assert runtime.framework.name == "XGBOOST"


def test_the_environment_of_a_model(routine: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its code is to find there is there before it is loaded."""
    monkeypatch.setenv("BATCH_TEST", "")
    source = ModelSource(
        prediction_class=routine.prediction_class,
        packages=routine.packages,
        environment={"BATCH_TEST": "here"},
    )
    SharedModel(source, "", 0).load()

    import os

    assert os.environ["BATCH_TEST"] == "here"
