"""Which framework a model folder belongs to, told from its files. Nothing of the model is run.

A folder holds exactly one model file, by its exact name, directly in it (contract, section 3.4):

    saved_model.pb, saved_model.pbtxt   TENSORFLOW
    model.bst                           XGBOOST
    model.joblib, model.pkl             SCIKIT_LEARN or XGBOOST, told by the first class in the pickle
    model.json, model.ubj               XGBOOST; our addition, so they count only where none of the others is

The last line keeps a `model.json` of notes beside a `model.pkl` from being taken for a second model.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import pickle
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from serving.errors import LoadFailed

PICKLE_FILES = ("model.joblib", "model.pkl")
CONTRACT_FILES = ("saved_model.pb", "saved_model.pbtxt", "model.bst", *PICKLE_FILES)
EXTENSION_FILES = ("model.json", "model.ubj")

# In the order they are tried when the framework is given.
MODEL_FILES = {
    "TENSORFLOW": ("saved_model.pb", "saved_model.pbtxt"),
    "SCIKIT_LEARN": PICKLE_FILES,
    "XGBOOST": (*PICKLE_FILES, "model.bst", *EXTENSION_FILES),
}

_HEAD_BYTES = 64 * 1024
_MAX_LISTED = 5
_KERAS_SUFFIXES = (".h5", ".hdf5", ".keras")
_NAMES_BY_SUFFIX = {
    ".pkl": "model.pkl",
    ".pickle": "model.pkl",
    ".joblib": "model.joblib",
    ".bst": "model.bst",
}
_CUSTOM_HINT = "With a custom prediction routine any file will do: name its class in predictionClass."
_SAVED_MODEL_FILES = MODEL_FILES["TENSORFLOW"]


def detect_framework(model_dir: Path, prediction_class: str) -> str:
    """The key of `FRAMEWORKS` for this folder.

    Raises LoadFailed saying which file names were looked for and what is there instead.
    """
    if prediction_class:
        return "CUSTOM"
    found = _list_existing(model_dir, CONTRACT_FILES) or _list_existing(model_dir, EXTENSION_FILES)
    if len(found) > 1:
        names = ", ".join(found)
        raise LoadFailed(f"Multiple model files are found in the model_path: {names}. Keep exactly one.")
    if not found:
        raise LoadFailed(_missing_file_message(model_dir, (*CONTRACT_FILES, *EXTENSION_FILES)))
    return _framework_of(model_dir / found[0])


def find_model_file(model_dir: Path, framework: str) -> Path:
    """The file a runtime of this framework loads. Raises LoadFailed when there is none."""
    names = MODEL_FILES[framework]
    found = _list_existing(model_dir, names)
    if found:
        return model_dir / found[0]
    others = [name for name in _list_existing(model_dir, CONTRACT_FILES) if name not in names]
    if others:
        raise LoadFailed(_other_framework_message(model_dir / others[0], framework))
    raise LoadFailed(_missing_file_message(model_dir, names))


def _list_existing(model_dir: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (model_dir / name).is_file()]


def _framework_of(file: Path) -> str:
    if file.name in PICKLE_FILES:
        root = read_first_class(file).partition(".")[0]
        return "XGBOOST" if root == "xgboost" else "SCIKIT_LEARN"
    return "TENSORFLOW" if file.name in _SAVED_MODEL_FILES else "XGBOOST"


def _other_framework_message(file: Path, framework: str) -> str:
    actual = _framework_of(file)
    return (
        f"The framework is {framework}, but the folder holds {file.name}, which is a model of {actual}. "
        f"Set the framework to {actual}, or leave it out. "
        f"For {framework} the file must be named {_join_with_or(MODEL_FILES[framework])}."
    )


# What is missing, and what is nearly there.


def _missing_file_message(model_dir: Path, names: Sequence[str]) -> str:
    if not model_dir.is_dir():
        return f"There is no model folder: {model_dir.name!r} does not exist or is not a folder."
    entries = sorted(model_dir.iterdir())
    listed = [entry.name + "/" * entry.is_dir() for entry in entries]
    text = f"No model file was found. Looked for {_join_with_or(names)} directly in the folder"
    if not listed:
        return f"{text}, and it is empty."
    more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    hints = [hint for entry in entries if (hint := _suggest_fix(entry, names))]
    advice = hints[0] if hints else _CUSTOM_HINT
    return f"{text}; found {', '.join(listed[:_MAX_LISTED])}{more}. {advice}"


def _suggest_fix(entry: Path, names: Sequence[str]) -> str:
    if entry.is_dir():
        inside = _list_existing(entry, names)
        return f"{entry.name}/ holds {inside[0]}: deploy that folder." if inside else ""
    if entry.suffix.lower() in _KERAS_SUFFIXES:
        return f"{entry.name} is a Keras file: write a SavedModel with model.export(folder) and deploy that."
    if entry.name.lower() in names:
        return f"Rename {entry.name} to {entry.name.lower()}."
    name = _NAMES_BY_SUFFIX.get(entry.suffix.lower())
    return f"Rename {entry.name} to {name}." if name in names else ""


def _join_with_or(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


# Looking into a pickle.


class _ClassFound(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _do_nothing(*_: object) -> None:
    """Stands in for the helpers that come before the class, so that nothing of the file is ever called."""


class _FirstClassUnpickler(pickle.Unpickler):
    """Stops at the first class. What it hands out for the few helpers before it does nothing."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name in {"copyreg", "copy_reg", "builtins", "__builtin__"}:
            return _do_nothing
        raise _ClassFound(f"{module_name}.{global_name}")


def read_first_class(file: Path) -> str:
    """The dotted name of the first class a pickle or joblib file names, "" if that cannot be told.

    The top object's class comes first in the stream: arguments and state follow it.
    """
    try:
        _FirstClassUnpickler(io.BytesIO(read_decompressed(file, _HEAD_BYTES))).load()
    except _ClassFound as found:
        return found.name
    except Exception:
        return ""  # any bytes may be in the file; loading it will say what is wrong
    return ""


def read_decompressed(file: Path, size: int = -1) -> bytes:
    """The first `size` bytes of a pickle, unpacked if joblib compressed it (all of them by default)."""
    with file.open("rb") as raw:
        head = raw.read(6)
        raw.seek(0)
        return _decompress_stream(raw, head, size)


def _inflate_zlib(data: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, max(size, 0))
    if size < 0 and not stream.eof:
        raise EOFError("the compressed data ends before its end mark")
    return unpacked


def _decompress_stream(raw: IO[bytes], head: bytes, size: int) -> bytes:
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw).read(size)
    if head.startswith(b"BZ"):
        return bz2.BZ2File(raw).read(size)
    if head.startswith((b"\xfd7zXZ", b"\x5d\x00")):
        return lzma.LZMAFile(raw).read(size)
    if head.startswith(b"\x04\x22\x4d\x18"):
        # lz4 is optional, for joblib too: without it this is an ImportError here and there.
        return bytes(importlib.import_module("lz4.frame").LZ4FrameFile(raw).read(size))
    if head.startswith(b"x"):
        return _inflate_zlib(raw.read(size), size)
    return raw.read(size)
