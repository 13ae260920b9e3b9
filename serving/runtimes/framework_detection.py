"""Which framework a model folder belongs to, told from its files. Nothing of the model is run.

A folder holds exactly one model file, by its exact name, directly in it (contract, section 3.4); the records
of the frameworks (`serving.frameworks`) list the names. Our additions to AI Platform's names count only where
none of those is: a `model.json` of notes beside a `model.pkl` is no second model.
"""

from __future__ import annotations

import bz2
import contextlib
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
from serving.frameworks import Framework, ModelFile, find_user_code_framework, load_frameworks

_HEAD_BYTES = 64 * 1024
_MAX_LISTED = 5
# How far below a folder without a model one is looked for, and in how many folders.
_MAX_DEPTH, _MAX_FOLDERS = 3, 200
_CUSTOM_HINT = "With a custom prediction routine any file will do: name its class in predictionClass."


def detect_framework(model_dir: Path, prediction_class: str) -> Framework:
    """The framework of this folder.

    Raises LoadFailed saying which file names were looked for and what is there instead.
    """
    if prediction_class:
        return find_user_code_framework()
    found = _find_models(model_dir)
    if len(found) > 1:
        names = ", ".join(found)
        raise LoadFailed(f"Multiple model files are found in the model_path: {names}. Keep exactly one.")
    if not found:
        raise LoadFailed(_missing_file_message(model_dir, [file.name for _, file in _list_known_files()]))
    return next(iter(found.values()))


def find_model_file(model_dir: Path, framework: Framework) -> Path:
    """The file a runtime of this framework loads. Raises LoadFailed when there is none."""
    found = _list_existing(model_dir, framework.file_names)
    if found:
        return model_dir / found[0]
    others = _find_models(model_dir)
    if others:
        raise LoadFailed(_other_framework_message(*next(iter(others.items())), framework))
    raise LoadFailed(_missing_file_message(model_dir, framework.file_names))


def list_model_files(folder: Path) -> list[str]:
    """The names of model files that are directly in a folder."""
    return _list_existing(folder, dict.fromkeys(file.name for _, file in _list_known_files()))


def describe_entries(folder: Path) -> str:
    """What a folder holds, the first few by name, with `/` after those of folders. Raises OSError."""
    listed = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    return ", ".join(listed[:_MAX_LISTED]) + more


def _list_known_files() -> list[tuple[Framework, ModelFile]]:
    """The model files of all frameworks, our extensions last."""
    files = [(framework, file) for framework in load_frameworks().values() for file in framework.model_files]
    return sorted(files, key=lambda item: item[1].is_extension)


def _find_models(model_dir: Path) -> dict[str, Framework]:
    """The model files of a folder by name, each with its framework.

    Where none is recognized, the first one counts nevertheless: loading says what is wrong with it.
    """
    listed = [
        (framework, file) for framework, file in _list_known_files() if (model_dir / file.name).is_file()
    ]
    for is_extension in (False, True):
        candidates = [item for item in listed if item[1].is_extension == is_extension]
        names = dict.fromkeys(file.name for _, file in candidates)
        owners = {name: _find_owner(model_dir / name, candidates) for name in names}
        found = {name: framework for name, framework in owners.items() if framework is not None}
        if found:
            return found
    return {file.name: framework for framework, file in listed[:1]}


def _find_owner(path: Path, candidates: Iterable[tuple[Framework, ModelFile]]) -> Framework | None:
    """The framework that recognizes a file, or else the one that takes any content."""
    named = [(framework, file.recognize) for framework, file in candidates if file.name == path.name]
    claimed = (framework for framework, recognize in named if recognize is not None and recognize(path))
    return next(claimed, None) or next((one for one, recognize in named if recognize is None), None)


def _list_existing(model_dir: Path, names: Iterable[str]) -> list[str]:
    return [name for name in names if (model_dir / name).is_file()]


def _other_framework_message(name: str, actual: Framework, wanted: Framework) -> str:
    return (
        f"The framework is {wanted.name}, but the folder holds {name}, which is a model of {actual.name}. "
        f"Set the framework to {actual.name}, or leave it out. "
        f"For {wanted.name} the file must be named {_join_with_or(wanted.file_names)}."
    )


# What is missing, and what is nearly there.


def _missing_file_message(model_dir: Path, wanted: Iterable[str]) -> str:
    names = tuple(dict.fromkeys(wanted))
    if not model_dir.is_dir():
        return f"There is no model folder: {model_dir.name!r} does not exist or is not a folder."
    entries = sorted(model_dir.iterdir())
    text = f"No model file was found. Looked for {_join_with_or(names)} directly in the folder"
    if not entries:
        return f"{text}, and it is empty."
    hints = [hint for entry in entries if (hint := _suggest_fix(entry, names))]
    advice = hints[0] if hints else _suggest_folder_below(model_dir, names) or _CUSTOM_HINT
    return f"{text}; found {describe_entries(model_dir)}. {advice}"


def _suggest_folder_below(model_dir: Path, names: Sequence[str]) -> str:
    found = _find_model_below(model_dir, names)
    return f"{found.parent.relative_to(model_dir)}/ holds {found.name}: deploy that folder." if found else ""


def find_folder_below(model_dir: Path) -> Path | None:
    """The nearest folder below that holds a model."""
    found = _find_model_below(model_dir, dict.fromkeys(file.name for _, file in _list_known_files()))
    return found and found.parent


def _find_model_below(model_dir: Path, names: Iterable[str]) -> Path | None:
    """The model file that is the least deep; none where it is too deep, or behind too many folders."""
    level = [model_dir]
    for _ in range(_MAX_DEPTH):
        below = [entry for folder in level for entry in _list_folders(folder)]
        level = below[:_MAX_FOLDERS]
        for folder in level:
            if inside := _list_existing(folder, names):
                return folder / inside[0]
    return None


def _list_folders(folder: Path) -> list[Path]:
    """Those directly in a folder; links are not followed, and none is in one that cannot be read."""
    try:
        return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
    except OSError:
        return []


def _suggest_fix(entry: Path, names: Sequence[str]) -> str:
    if entry.is_dir():
        return ""
    suffix = entry.suffix.lower()
    for framework in load_frameworks().values():
        if suffix in framework.advice:
            return framework.advice[suffix].format(name=entry.name)
    if entry.name.lower() in names:
        return f"Rename {entry.name} to {entry.name.lower()}."
    name = next(
        (file.name for _, file in _list_known_files() if suffix in file.suffixes), ""
    ) or _suggest_name(entry)
    return f"Rename {entry.name} to {name}." if name in names else ""


def _suggest_name(entry: Path) -> str:
    """The name that a file should have by its content, "" if no framework knows it, or it cannot be read."""
    with contextlib.suppress(OSError):
        for _, file in _list_known_files():
            recognize = None if file.is_shared_name else file.recognize
            if recognize is not None and entry.is_file() and recognize(entry):
                return file.name
    return ""


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
