"""Models computed by a predictor process, here by the interpreter of the tests: the answers are its own."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import joblib
import numpy as np
import psutil
import pytest
import sklearn
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from serving.errors import (
    InvalidInputs,
    InvalidOutputs,
    InvalidUserCode,
    LoadFailed,
    ModelFailed,
    Unavailable,
)
from serving.predictor import PROGRAM
from serving.predictor.program import ARRAY, BYTES
from serving.runtimes import ArrayFormat, ExternalInterpreter, LoadSpec, RowsFormat, load_model, model_check
from serving.runtimes.external import ExternalRuntime
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions

ROWS, CLASSES = np.random.default_rng(3).normal(size=(60, 3)).round(3), np.arange(60) % 3
TEXTS = ["a good day", "a bad day", "good", "bad"]
PYTHON = sys.executable

ROUTINE = dedent(
    """
    import os

    class Routine:
        def predict(self, instances, **kwargs):
            return [self.answer(instance, kwargs) for instance in instances]

        def answer(self, instance, kwargs):
            if instance == "pid":
                return os.getpid()
            if instance == "kwargs":
                return kwargs
            if instance == "raise":
                raise KeyError("no such thing")
            if instance == "panic":
                raise GeneratorExit("what ends threads")
            if instance == "exit":
                os._exit(7)
            if instance == "environment":
                return dict(os.environ)
            if instance == "limits":
                import resource
                return [*resource.getrlimit(resource.RLIMIT_NOFILE), os.getpriority(os.PRIO_PROCESS, 0)]
            if instance == "odd":
                return object()
            return instance

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    """
)

Loader = Callable[..., ExternalRuntime]


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Loader]:
    """Loads an estimator, or what a source says; the predictors end with the test."""
    runtimes: list[ExternalRuntime] = []

    def load_it(model: Any = None, **source: Any) -> ExternalRuntime:
        if model is not None:
            joblib.dump(model, tmp_path / "model.joblib")
        runtime = load_model(LoadSpec(tmp_path, external=ExternalInterpreter(PYTHON), **source))
        assert isinstance(runtime, ExternalRuntime)
        runtimes.append(runtime)
        return runtime

    yield load_it
    for runtime in runtimes:
        runtime.close()


@pytest.fixture
def routine(tmp_path: Path, loaded: Loader) -> ExternalRuntime:
    """A custom routine."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "routine.py").write_text(ROUTINE)
    return loaded(prediction_class="routine.Routine", packages=(tmp_path / "code",))


def answers(runtime: ExternalRuntime, instances: list[Any], **parameters: Any) -> Any:
    """What a client is told."""
    body = json.dumps({"instances": instances, **parameters}).encode()
    batch, given = InstancesDecoder().decode(body, runtime.input_format)
    return json.loads(encode_predictions(runtime.predict(batch, **given)))["predictions"]


@pytest.mark.parametrize(
    ("model", "rows", "form"),
    [
        (RandomForestClassifier(5, random_state=0).fit(ROWS, CLASSES), ROWS[:5].tolist(), ArrayFormat),
        (
            make_pipeline(StandardScaler(), LinearRegression()).fit(ROWS, CLASSES),
            ROWS[:5].tolist(),
            ArrayFormat,
        ),
        (LogisticRegression().fit(ROWS, np.array(["a", "b", "c"])[CLASSES]), ROWS[:5].tolist(), ArrayFormat),
        (
            make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, [1, 0, 1, 0]),
            TEXTS[2:],
            RowsFormat,
        ),
        (
            make_pipeline(make_column_transformer((OneHotEncoder(), [0])), LinearRegression()).fit(
                np.array([["x"], ["y"]], dtype=object), [1, 2]
            ),
            [["x"], ["y"]],
            RowsFormat,
        ),
    ],
    ids=["forest", "pipeline", "labels", "text", "columns"],
)
def test_answers_are_the_librarys_own(model: Any, rows: list[Any], form: type, loaded: Loader) -> None:
    """To the bit, whether numbers cross as an array or values as they are."""
    runtime = loaded(model)

    assert isinstance(runtime.input_format({}), form)
    assert answers(runtime, rows) == model.predict(rows).tolist()
    assert runtime.framework.name == "SCIKIT_LEARN"
    assert runtime.mergeable == (form is ArrayFormat or rows == TEXTS[2:])


def test_named_columns_become_a_data_frame_over_there(loaded: Loader) -> None:
    """In the order of the names that the model was fitted with."""
    import pandas as pd

    frame = pd.DataFrame({"age": [1.0, 2.0, 3.0], "city": ["Oslo", "Rome", "Oslo"]})
    steps = make_column_transformer((OneHotEncoder(), ["city"]), remainder="passthrough")
    model = make_pipeline(steps, LinearRegression()).fit(frame, [1, 2, 3])
    runtime = loaded(model)

    assert answers(runtime, [{"city": "Rome", "age": 2.0}]) == pytest.approx(model.predict(frame[1:2]))
    with pytest.raises(InvalidInputs, match="no 'age'"):
        answers(runtime, [{"city": "Rome"}])


def test_the_schema_is_what_the_model_over_there_tells(loaded: Loader) -> None:
    """Width, labels and an example that it answers."""
    schema = loaded(LogisticRegression().fit(ROWS, np.array(["a", "b", "c"])[CLASSES])).infer_schema()

    signature = schema.signatures["serving_default"]
    assert signature.inputs[0].shape == (-1, 3)
    assert signature.outputs[0].classes == ("a", "b", "c")
    assert schema.answer in ("a", "b", "c")


def test_advice_has_the_command_that_helps(loaded: Loader, tmp_path: Path) -> None:
    """For a model of another version than the one that computes it; none where it is the same."""
    same = loaded(LogisticRegression().fit(ROWS, CLASSES)).describe_versions()
    file, here = tmp_path / "model.joblib", sklearn.__version__
    old = {5: "1.0.2", 6: "0.24.2"}[len(here)]  # as long, for what surrounds it in the file
    file.write_bytes(file.read_bytes().replace(here.encode(), old.encode()))

    other = loaded().describe_versions()

    assert same.endswith(f" It was saved with scikit-learn {here} too.")
    assert f"It was saved with scikit-learn {old}: have that version compute it:" in other
    assert "`pilotlight runtimes add 2." in other
    assert " --create`, and create the version with runtimeVersion 2." in other


def test_a_routine_runs_in_a_process_of_its_own(routine: ExternalRuntime) -> None:
    """With values, bytes and keyword arguments as in the node itself."""
    assert answers(routine, ["pid"]) != [os.getpid()]
    assert answers(routine, [1, 2.5, None, {"a": ["b"]}]) == [1, 2.5, None, {"a": ["b"]}]
    assert answers(routine, ["kwargs"], top=3) == [{"top": 3}]
    assert routine.predict([b"\x00\xff", np.float32(0.1)]) == [b"\x00\xff", np.float32(0.1)]


def test_errors_keep_their_meaning(routine: ExternalRuntime, loaded: Loader, tmp_path: Path) -> None:
    """What the client did, what the code did, and what cannot be sent."""
    with pytest.raises(ModelFailed, match="KeyError: 'no such thing'"):
        answers(routine, ["raise"])
    with pytest.raises(ModelFailed, match="GeneratorExit: what ends threads"):
        answers(routine, ["panic"])
    with pytest.raises(InvalidOutputs, match="object, which has no form in JSON"):
        answers(routine, ["odd"])
    forest = loaded(RandomForestClassifier(2, random_state=0).fit(ROWS, CLASSES))
    with pytest.raises(InvalidInputs, match="does not take the request field 'depth'"):
        answers(forest, ROWS[:1].tolist(), depth=3)
    with pytest.raises(InvalidInputs):
        answers(forest, [[1, 2]])
    assert answers(forest, ROWS[:1].tolist()) == [0]  # none of that is remembered


def test_an_estimator_that_lacks_an_attribute_is_told_apart(tmp_path: Path, loaded: Loader) -> None:
    """Whatever package it is of: that is no fault of what was asked."""
    (tmp_path / "encoders.py").write_text(
        "from sklearn.base import BaseEstimator\n"
        "class Encoder(BaseEstimator):\n"
        "    def predict(self, X):\n"
        "        return [self.missing_ for row in X]\n"
    )
    (tmp_path / "model.pkl").write_bytes(b"\x80\x03cencoders\nEncoder\n)\x81.")
    runtime = loaded(packages=(tmp_path,))

    trial = model_check.try_instance(runtime, [1.0], "An instance")

    assert trial.raised is not None
    assert trial.raised.estimator_package == "encoders"
    assert model_check.is_model_fault(trial)


def test_what_cannot_be_loaded_says_why_and_by_whom(tmp_path: Path, loaded: Loader) -> None:
    """A broken pickle, a class that is not there, an interpreter that is none."""
    (tmp_path / "model.joblib").write_bytes(b"\x80\x04nonsense")
    with pytest.raises(LoadFailed, match=r"model\.joblib: .* It was loaded by "):
        loaded(framework="SCIKIT_LEARN")
    with pytest.raises(InvalidUserCode, match="nothing_here"):
        loaded(prediction_class="nothing_here.Routine")
    with pytest.raises(LoadFailed, match="Cannot start /nowhere/python"):
        load_model(LoadSpec(tmp_path, "CUSTOM", "a.B", external=ExternalInterpreter("/nowhere/python")))


def test_a_predictor_that_dies_is_told_of(routine: ExternalRuntime) -> None:
    """How it ended, for whom does not end with it."""
    (pid,) = answers(routine, ["pid"])
    os.kill(pid, signal.SIGKILL)

    with pytest.raises(Unavailable, match="signal SIGKILL"):
        answers(routine, [1])


def test_it_has_the_environment_and_the_limits_of_its_node(
    routine: ExternalRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the process that loads it, whoever has forked it."""
    monkeypatch.setenv("create_version_request", "{}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        source = LoadSpec(
            tmp_path, "CUSTOM", "routine.Routine", (tmp_path / "code",), external=ExternalInterpreter(PYTHON)
        )
        runtime = load_model(source)
        environment, limits = answers(runtime, ["environment", "limits"])  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert environment["create_version_request"] == "{}"
    assert limits == [200, hard, os.getpriority(os.PRIO_PROCESS, 0)]
    runtime.close()  # type: ignore[attr-defined]


def test_arrays_of_many_bytes_cross_both_ways(tmp_path: Path, loaded: Loader) -> None:
    """To the bit, and aligned as compiled code wants them."""
    (tmp_path / "echo.py").write_text(
        "class Echo:\n"
        "    def predict(self, instances, **kwargs):\n"
        "        assert instances.flags.aligned and instances.flags.writeable\n"
        "        return instances\n"
        "    @classmethod\n"
        "    def from_path(cls, model_dir):\n"
        "        return cls()\n"
    )
    runtime = loaded(prediction_class="echo.Echo", packages=(tmp_path,))

    for given in (np.random.default_rng(1).normal(size=(4_000_000, 2)), np.array(["\xe9", "ab"]), ROWS[::2]):
        answer = runtime.predict(given)

        assert isinstance(answer, np.ndarray)
        assert answer.dtype == given.dtype
        assert answer.tobytes() == given.tobytes()


def test_threads_take_turns(routine: ExternalRuntime) -> None:
    """Each gets its own answer."""
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: routine.predict([number] * 50), range(400)))

    assert found == [[number] * 50 for number in range(400)]


def test_values_that_look_like_parts_of_a_message_are_values(routine: ExternalRuntime) -> None:
    """What a client sends cannot end the predictor."""
    odd = [
        {ARRAY: ["<f8", [1 << 40], ""]},
        {ARRAY: 3},
        {BYTES: 5},
        {ARRAY: ["O", [1], "AAAA"]},
        {BYTES: 1, "a": 2},
    ]

    assert routine.predict(odd) == odd
    assert routine.predict([1]) == [1]


def test_no_process_is_left(tmp_path: Path, loaded: Loader, routine: ExternalRuntime) -> None:
    """None that was closed, none that could not load, and none of either as a zombie."""
    (tmp_path / "model.joblib").write_bytes(b"\x80\x04nonsense")
    with pytest.raises(LoadFailed):
        loaded(framework="SCIKIT_LEARN")
    routine.close()

    assert not [
        one
        for one in psutil.Process().children()
        if str(PROGRAM) in one.cmdline() or one.status() == "zombie"
    ]


def test_files_that_name_the_joblib_of_scikit_learn(tmp_path: Path, loaded: Loader) -> None:
    """As those that were saved before scikit-learn 0.23 do; code may import it too."""
    (tmp_path / "old.py").write_text(
        "from sklearn.externals import joblib\n"
        "import sklearn.externals.joblib.numpy_pickle\n"
        "class Old:\n"
        "    def predict(self, instances, **kwargs):\n"
        "        return [joblib.__name__ for _ in instances]\n"
        "    @classmethod\n"
        "    def from_path(cls, model_dir):\n"
        "        return cls()\n"
    )

    assert answers(loaded(prediction_class="old.Old", packages=(tmp_path,)), [1]) == ["joblib"]


def test_a_routine_may_have_the_name_of_a_package_of_the_server(tmp_path: Path, loaded: Loader) -> None:
    """Its own comes first over there."""
    (tmp_path / "code" / "serving").mkdir(parents=True)
    (tmp_path / "code" / "serving" / "__init__.py").write_text(ROUTINE)

    runtime = loaded(prediction_class="serving.Routine", packages=(tmp_path / "code",))

    assert answers(runtime, ["mine"]) == ["mine"]


def test_a_saved_model_is_served_here(tmp_path: Path) -> None:
    """It needs no library of an old version: no predictor is started for it."""
    (tmp_path / "saved_model.pb").write_bytes(b"")

    with pytest.raises(LoadFailed) as failed:
        load_model(LoadSpec(tmp_path, external=ExternalInterpreter("/nowhere/python")))
    assert "/nowhere/python" not in failed.value.message
