from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.errors import InvalidInputs, InvalidOutputs, InvalidUserCode, LoadFailed, ModelFailed
from serving.runtimes import LoadSpec, RowsFormat, Runtime
from serving.runtimes import load_model as load_any
from serving.runtimes.custom_runtime.runtime import load_model
from serving.runtimes.user_packages import add_to_import_path

Loader = Callable[..., Runtime]

PREDICTOR = """
    class Predictor:
        def __init__(self, folder):
            self.folder = folder
        @classmethod
        def from_path(cls, model_dir):
            return cls(model_dir)
        def predict(self, instances, **kwargs):
            {body}
"""


@pytest.fixture
def routine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Loads `user_routine.Predictor` from a package folder that holds the given code."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def load_code(code: str, name: str = "user_routine.Predictor") -> Runtime:
        packages = tmp_path / "packages"
        packages.mkdir()
        (packages / "user_routine.py").write_text(textwrap.dedent(code))
        model = tmp_path / "model"
        model.mkdir()
        return load_model(LoadSpec(model, prediction_class=name, packages=(packages,)))

    yield load_code
    sys.modules.pop("user_routine", None)


def body(text: str) -> str:
    return PREDICTOR.format(body=text)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("return [len(one) for one in instances]", [1, 2]),
        ("return tuple(instances)", ["a", "bb"]),
        ("return instances * 2", ["a", "bb", "a", "bb"]),
        ("return [kwargs, self.folder.rpartition('/')[2]]", [{"signature_name": "s", "top": 3}, "model"]),
    ],
)
def test_the_answer_is_what_the_class_returns(code: str, expected: list[Any], routine: Loader) -> None:
    """The routine gets the plain instances, its folder and every extra field, signature_name included."""
    runtime = routine(body(code))

    assert runtime.input_format({"top": 3}) == RowsFormat()
    assert runtime.predict(["a", "bb"], signature_name="s", top=3) == expected
    assert (runtime.framework.name, runtime.mergeable, runtime.exact) == ("CUSTOM", False, True)
    assert runtime.make_synthetic_rows(3) is None


def test_an_array_is_an_answer(routine: Loader) -> None:
    """Predictors return numpy arrays as often as lists."""
    result = routine(body("import numpy; return numpy.array(instances)")).predict([[1], [2]])

    assert isinstance(result, np.ndarray)
    assert result.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("return 'text'", "str"),
        ("return {'a': 1}", "dict"),
        ("return None", "NoneType"),
        ("return (one for one in instances)", "generator"),
        ("import numpy; return numpy.array(1)", "ndarray"),
    ],
)
def test_other_answers_are_refused(code: str, named: str, routine: Loader) -> None:
    """An answer that is not a list is an error that names its type."""
    with pytest.raises(InvalidOutputs, match=f"not {named}"):
        routine(body(code)).predict([1])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return [1 / 0]", "Exception during custom prediction: ZeroDivisionError: division by zero"),
        ("raise KeyError('age')", "Exception during custom prediction: KeyError: 'age'"),
        ("raise RuntimeError", "Exception during custom prediction: RuntimeError"),
        ("import sys; sys.exit(3)", "Exception during custom prediction: SystemExit: 3"),
        ("raise GeneratorExit", "Exception during custom prediction: GeneratorExit"),
        (
            "raise type('Panic', (BaseException,), {})('at 7')",
            "Exception during custom prediction: Panic: at 7",
        ),
        (
            "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})",
            "Exception during custom prediction: Mute",
        ),
    ],
)
def test_exceptions_name_themselves(code: str, message: str, routine: Loader) -> None:
    """Whatever predict raises is reported with its type, and keeps its cause; not even exit ends the node."""
    with pytest.raises(ModelFailed) as caught:
        routine(body(code)).predict([1])

    assert caught.value.detail == message
    assert caught.value.__cause__ is not None


def test_without_kwargs_extra_fields_are_refused(routine: Loader) -> None:
    """A predict that takes no keywords: signature_name is dropped, other fields are named."""
    runtime = routine(
        """
        class Predictor:
            from_path = classmethod(lambda cls, folder: cls())
            def predict(self, instances):
                return instances
        """
    )

    assert runtime.predict([1], signature_name="serving_default") == [1]
    with pytest.raises(InvalidInputs, match="request field 'threshold'; it takes none"):
        runtime.input_format({"threshold": 0.5})


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("", "no_such_module.Predictor", "no package has the module no_such_module. Name the archive"),
        ("x = 1", "user_routine.Predictor", "the module user_routine has no Predictor"),
        ("", "Predictor", "predictionClass must be module.Class"),
        (
            "import absent_module",
            "user_routine.Predictor",
            "No module named 'absent_module'. Package that module",
        ),
        ("1 / 0", "user_routine.Predictor", "ZeroDivisionError: division by zero (user_routine.py, line 1)"),
        ("def f(:", "user_routine.Predictor", "SyntaxError"),
        (
            "raise BaseException('no')",
            "user_routine.Predictor",
            "BaseException: no (user_routine.py, line 1)",
        ),
        ("raise SystemExit('no')", "user_routine.Predictor", "SystemExit: no (user_routine.py, line 1)"),
        ("class Predictor: pass", "user_routine.Predictor", "has no method from_path"),
        (
            "class Predictor:\n    from_path = classmethod(lambda cls, folder: cls())",
            "user_routine.Predictor",
            "has no method predict. A custom prediction routine has a class method from_path(cls, model_dir)",
        ),
        (
            "class Predictor:\n    predict = lambda self, instances: instances\n"
            "    @classmethod\n    def from_path(cls, folder):\n        open('/absent/file')",
            "user_routine.Predictor",
            "from_path failed: FileNotFoundError",
        ),
        (
            "class Predictor:\n    predict = lambda self, instances: instances\n"
            "    from_path = classmethod(lambda cls, folder: None)",
            "user_routine.Predictor",
            "from_path returned NoneType, which has no predict",
        ),
    ],
)
def test_classes_that_cannot_be_used_say_why(code: str, name: str, message: str, routine: Loader) -> None:
    """Not found, not importable, wrong shape or failing: one sentence with the way out."""
    with pytest.raises(InvalidUserCode) as caught:
        routine(code, name)

    assert message in caught.value.detail


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ("self, instances", True),
        ("self, instances, **kwargs", True),
        ("self, instances, *rest, **kwargs", True),
        ("self", False),
        ("self, rows, **kwargs", False),
        ("self, instances, top, **kwargs", False),
        ("self, instances, top=3, **kwargs", False),
        ("self, instances, *, top=3", False),
    ],
)
def test_predict_has_exactly_the_contracts_arguments(arguments: str, right: bool, routine: Loader) -> None:
    """predict(self, instances), with or without kwargs; named extra arguments are refused."""
    code = f"""
        class Predictor:
            from_path = classmethod(lambda cls, folder: cls())
            def predict({arguments}):
                return instances
    """
    if right:
        assert routine(code).predict([1]) == [1]
    else:
        with pytest.raises(InvalidUserCode, match=r"def predict\(self, instances, \*\*kwargs\)"):
            routine(code)


def test_a_class_is_required(tmp_path: Path) -> None:
    """CUSTOM without predictionClass says what is missing."""
    with pytest.raises(InvalidUserCode, match="predictionClass"):
        load_model(LoadSpec(tmp_path, "CUSTOM"))


def test_the_server_comes_before_user_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Package folders go to the end of the path, each once, so that nothing of the server is shadowed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = [*sys.path]

    add_to_import_path([tmp_path / "a", tmp_path / "b"])
    add_to_import_path([tmp_path / "b", tmp_path / "a"])

    assert sys.path == [*before, str(tmp_path / "a"), str(tmp_path / "b")]


def test_the_class_makes_the_framework(tmp_path: Path) -> None:
    """A prediction class alone leads to this runtime; without one an empty folder is no model."""
    with pytest.raises(InvalidUserCode):
        load_any(LoadSpec(tmp_path, prediction_class="no_such_module.Predictor"))
    with pytest.raises(LoadFailed):
        load_any(LoadSpec(tmp_path))
