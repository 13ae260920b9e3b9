"""Reading a model from a joblib or pickle file, and saying what to do when that fails.

Unpickling runs code of the file: whoever may create a version may run code. That is what serving a
pickled model means, and why nothing here tries to sandbox it.
"""

from __future__ import annotations

import importlib.util
import mmap
import pickle
import re
import sys
import traceback
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from serving.errors import LoadFailed, sanitize_text
from serving.predictor.program import install_old_joblib
from serving.predictor.runtime_versions import suggest_runtime
from serving.runtimes.framework_detection import read_decompressed, read_first_class
from serving.runtimes.user_packages import add_to_import_path

_OTHER_FORMATS = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run git lfs pull and upload again",
    b"\x89HDF": "an HDF5 file, most likely of Keras",
    b"PK\x03\x04": "a zip archive, most likely of PyTorch, Keras or numpy",
    b"binf": "an XGBoost model written by save_model: name it model.bst",
    b"{": "a JSON file",
    b"<": "an HTML or XML file",
}
_COMPRESSION_PREFIXES = (b"\x1f\x8b", b"BZ", b"\xfd7zXZ", b"\x5d\x00", b"\x04\x22\x4d\x18", b"x", b"ZF")
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}
_PACKAGING_HINT = "Package it and name the archive in packageUris."
_MAX_WARNINGS = 5
_MAX_WARNING_LENGTH = 1000
_MAX_SCANNED_VALUES = 1000
# The version in an estimator's state: a text with its length in front, or in a line of its own (protocol 0).
_SKLEARN_VERSION_PATTERN = re.compile(
    rb"_sklearn_version.{0,9}?(?:(?:\x8c|U)(?P<length>.)|X(?P<long>.)\0\0\0|V)(?P<text>\d+\.\d+[\w.]*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LoadedPickle:
    """An unpickled object, what its libraries warned of while it was read, and all `parts` of it."""

    model: Any
    warnings: tuple[str, ...]
    parts: tuple[Any, ...]


def load_pickle(file: Path, packages: Iterable[Path] = ()) -> LoadedPickle:
    """Read the model of a joblib or pickle file. Raises LoadFailed with the reason and the ways out."""
    add_to_import_path(packages)
    install_old_joblib()
    if not file.stat().st_size:
        raise LoadFailed(f"{file.name} is empty: upload it again.")
    if _holds_booster(file):
        _check_booster(file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = _read_pickle(file)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise LoadFailed(_failure_message(file, error)) from error
    inside = tuple(walk_parts(model))
    _set_missing_attributes(inside)
    return LoadedPickle(model, format_warnings(caught), inside)


def _read_pickle(file: Path) -> Any:
    if _is_written_by_joblib(file):
        return joblib.load(file)
    with file.open("rb") as stream:
        # joblib reads such files too, but with an unpickler in Python, many times slower on big dictionaries.
        return pickle.load(stream)


def _is_written_by_joblib(file: Path) -> bool:
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data[:6].startswith(_COMPRESSION_PREFIXES) or data.find(b"joblib.numpy_pickle") >= 0


def _holds_booster(file: Path) -> bool:
    """Whether XGBoost has written a part of it; of compressed files their first class tells."""
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        plain = data.find(b"xgboost.core") >= 0
    return plain or read_first_class(file).startswith("xgboost.")


def _check_booster(file: Path) -> None:
    # Imports XGBoost, which is done only where such a model is served.
    from serving.runtimes.xgboost_runtime.model_format import check_pickle  # noqa: PLC0415

    try:
        data = read_decompressed(file)
    except Exception:
        return  # it cannot be unpacked to its end; loading it will say so
    check_pickle(data, file.name)


def _set_missing_attributes(inside: Iterable[Any]) -> None:
    for part in inside:
        if type(part).__name__ == "LinearRegression" and "positive" not in vars(part):
            part.positive = False  # a parameter since scikit-learn 0.24


# What was warned of.


def format_warnings(caught: Iterable[warnings.WarningMessage]) -> tuple[str, ...]:
    """Recorded warnings as sentences for a user, each once. Those meant for developers are left out."""
    texts = [
        _format_warning(one.message) for one in caught if not issubclass(one.category, DeprecationWarning)
    ]
    return tuple(dict.fromkeys(texts))[:_MAX_WARNINGS]


def _format_warning(warning: Warning | str) -> str:
    saved = getattr(warning, "original_sklearn_version", None)
    if saved is None:
        return sanitize_text(" ".join(str(warning).split()), _MAX_WARNING_LENGTH)
    # One sentence for all the estimators of a model: each of them warns.
    current = getattr(warning, "current_sklearn_version", "")
    return (
        f"The model was saved with scikit-learn {saved} and is served with {current}: "
        f"its answers may differ. Save it again with the version it is served with, or "
        f"{_suggest_version(saved)}."
    )


# Why it failed.


def _failure_message(file: Path, error: BaseException) -> str:
    reason = (
        _missing_name_message(file, error)
        or _unreadable_message(file, error)
        or _unexpected_error_message(file, error)
    )
    return f"{file.name}: {reason}"


def _missing_name_message(file: Path, error: BaseException) -> str:
    """The text for a module or a class that is not there, "" for other errors."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing_module_message(file, f"module {error.name}", error.name, error)
    lost = re.match(r"Can't get (?:local )?attribute '?(\S+?)'? on <module '([\w.]+)'", str(error))
    if lost is None:
        return ""
    name, module = lost.groups()
    if module in _list_main_aliases():
        return (
            f"it needs {name}, which was defined in the script that trained the model (__main__.{name}). "
            f"Move it into a module of its own, save the model again from there. {_PACKAGING_HINT}"
        )
    return _missing_module_message(file, f"{name} of module {module}", module, error)


def _list_main_aliases() -> set[str]:
    # Started with `python -m`, __main__ shows itself in messages under the name of its module.
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return {"__main__", spec.name} if spec else {"__main__"}


def _missing_module_message(file: Path, what: str, module: str, error: BaseException) -> str:
    root = module.partition(".")[0]
    if _is_private_sklearn_module(root) and (
        read_sklearn_version(file) or read_first_class(file).startswith("sklearn.")
    ):
        installed = _installed_version("sklearn")
        what = f"{what}, a private module of another version of scikit-learn"
        return f"it needs {what}, which {installed} does not have. {_other_version_message(file, installed)}"
    installed = _installed_version(root)
    if installed:
        return f"it needs {what}, which {installed} does not have. {_other_version_message(file, installed)}"
    if _is_importable(root):
        return f"it needs {what}, but your package does not have it ({error}). {_PACKAGING_HINT}"
    return f"it needs {what}, which is not installed here. {_PACKAGING_HINT}"


def _is_private_sklearn_module(module: str) -> bool:
    """Whether scikit-learn has a compiled module of this name inside: some say no package with it."""
    spec = importlib.util.find_spec("sklearn")
    folders = (spec and spec.submodule_search_locations) or ()
    return module.startswith("_") and any(any(Path(one).rglob(f"{module}.*")) for one in folders)


def _unreadable_message(file: Path, error: BaseException) -> str:
    """The text for a file that is cut off or no pickle at all, "" for other errors."""
    head = file.open("rb").read(64)
    for start, what in _OTHER_FORMATS.items():
        if head.startswith(start):
            return f"this is not a pickle or joblib file but {what}."
    if isinstance(error, UnicodeDecodeError):
        return f"it seems to be written by Python 2 ({error}). Save the model again with Python 3."
    if not head.startswith((b"\x80", *_COMPRESSION_PREFIXES)) and not read_first_class(file):
        return f"this is not a pickle or joblib file: it starts with {head[:8]!r}."
    if _is_end_of_data(error) or not _is_complete(file):
        return f"the file is cut off after {file.stat().st_size} bytes ({error}): upload it again."
    return ""


def _is_end_of_data(error: BaseException) -> bool:
    ended = re.search("truncated|exhausted|ran out of input", str(error), re.IGNORECASE)
    return isinstance(error, EOFError) or (isinstance(error, pickle.UnpicklingError) and ended is not None)


def _is_complete(file: Path) -> bool:
    try:
        return read_decompressed(file).endswith(pickle.STOP)
    except Exception:
        return False  # what was compressed cannot be unpacked to its end


def _unexpected_error_message(file: Path, error: BaseException) -> str:
    first_line = str(error).partition("\n")[0].rstrip(":")
    text = f"{type(error).__name__}: {first_line}"
    if package := _find_importing_package(error):
        return (
            f"{text}. {package} imports it: use a version of {package} that goes with what is installed here."
        )
    installed = _installed_version(
        "sklearn" if read_sklearn_version(file) else read_first_class(file).partition(".")[0]
    )
    return f"{text}. {_other_version_message(file, installed)}" if installed else text


def _find_importing_package(error: BaseException) -> str:
    """The package that imports a name which a library does not have, "" if that is the library itself."""
    if not isinstance(error, ImportError) or not error.name or "cannot import name" not in str(error):
        return ""
    modules = [
        str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    package = modules[-1].partition(".")[0]
    return "" if package in {error.name.partition(".")[0], "sklearn", "serving"} else package


def _other_version_message(file: Path, installed: str) -> str:
    saved = read_sklearn_version(file)
    written = (
        f"The model probably was saved with scikit-learn {saved}"
        if saved
        else "The file does not tell which version of scikit-learn has saved it, most likely another one"
    )
    return (
        f"{written}; this server has {installed}. Save it again with {installed}, or "
        f"{_suggest_version(saved)}."
    )


def describe_saved_version(file: Path) -> str:
    """What helps where the scikit-learn here has read a file and cannot compute what was in it."""
    saved, installed = read_sklearn_version(file), _installed_version("sklearn")
    if installed == f"scikit-learn {saved}":
        return f"It was saved with {installed}, as this server has it."
    return _other_version_message(file, installed)


def describe_version_mismatch(file: Path, installed: str) -> str:
    """Which scikit-learn has saved a file, and what helps where that is not the one that computes it."""
    saved = read_sklearn_version(file)
    if saved and saved == installed:
        return f"It was saved with scikit-learn {saved} too."
    remedy = _suggest_version(saved)
    if saved:
        return f"It was saved with scikit-learn {saved}: {remedy}."
    return f"The file does not tell which version of scikit-learn has saved it: {remedy}."


def _suggest_version(saved: str) -> str:
    """How to have the model computed by the scikit-learn that saved it."""
    if not saved:
        return (
            "have its own version compute it: `pilotlight runtimes add VERSION --create`, VERSION being the "
            "runtimeVersion of AI Platform that it was made for"
        )
    remedy = suggest_runtime(saved)
    return (
        f"have that version compute it: `{remedy.command}`, and create the version with runtimeVersion "
        f"{remedy.runtime_version}"
    )


def read_sklearn_version(file: Path) -> str:
    """The scikit-learn version an estimator's state carries, "" if none can be read."""
    try:
        data = read_decompressed(file)
    except Exception:
        return ""
    found = _SKLEARN_VERSION_PATTERN.search(data)
    if found is None:
        return ""
    # In front of a text is its length: what follows it are further bytes of the pickle.
    length = found["length"] or found["long"]
    return found["text"][: length[0] if length else None].decode()


def _installed_version(root: str) -> str:
    name = _DISTRIBUTIONS.get(root, root)
    try:
        return f"{name} {metadata.version(name)}" if name else ""
    except metadata.PackageNotFoundError:
        return ""


def _is_importable(root: str) -> bool:
    return root in sys.modules or importlib.util.find_spec(root) is not None


# Walking a model.

_FUNCTION_TYPES = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, np.ufunc, partial)
_PLAIN_TYPES = (str, bytes, int, float, type(None), np.generic, type)


def walk_parts(model: object) -> Iterator[object]:
    """A model and every object and function that is part of it, at any depth, each once.

    `get_params` would not do: it shows the estimators a user configured, while `predict` runs on
    their fitted copies (`estimators_`), and it fails on objects of an older version.
    """
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _PLAIN_TYPES) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, _FUNCTION_TYPES) or _has_state(part):
            yield part
        waiting += _list_children(part)


def _has_state(part: object) -> bool:
    return isinstance(getattr(part, "__dict__", None), dict)


def _list_children(part: object) -> list[object]:
    match part:
        case partial():
            return [part.func, *part.args, *part.keywords.values()]
        case dict():
            return _drop_plain_collection(list(part.values()))
        case list() | tuple() | set() | frozenset():
            return _drop_plain_collection(list(part))
        case np.ndarray():
            return _drop_plain_collection(part.ravel().tolist()) if part.dtype.hasobject else []
    inside_library = root_package(part) in {"numpy", "scipy", "pandas"} or isinstance(part, _FUNCTION_TYPES)
    return list(vars(part).values()) if _has_state(part) and not inside_library else []


def _drop_plain_collection(values: list[object]) -> list[object]:
    # A vocabulary has a million numbers, and whoever holds that many of one kind holds nothing else.
    plain = len(values) > _MAX_SCANNED_VALUES and isinstance(values[0], _PLAIN_TYPES)
    return [] if plain else values


def root_package(part: object) -> str:
    """The top-level package of an object's class, or of a function."""
    if isinstance(part, np.ufunc):
        return "numpy"
    owner = part if isinstance(part, _FUNCTION_TYPES) and not isinstance(part, partial) else type(part)
    return str(getattr(owner, "__module__", None) or "").partition(".")[0]
