"""What the text of a LightGBM model says of itself before its trees, and whether all of them are there.

LightGBM looks for each tree where the sizes of the ones before it say: of a text that was cut short or
changed it reads other trees, or ends the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from serving.errors import LoadFailed
from serving.runtimes.feature_rows import MAX_FEATURES
from serving.runtimes.lightgbm_runtime.framework import is_lightgbm_text
from serving.runtimes.lightgbm_runtime.tree_structure import check_tree

# More lines than any version has written before the trees.
_MAX_LINES = 64
_UNNAMED = re.compile(r"Column_\d+")
# Before 2.2 the next part of the text followed at once; later that part has another name.
_ENDS_OF_TREES = (b"end of trees", b"feature importances:")
# The values that a categorical feature had in training; ranges of numbers have brackets.
_CATEGORICAL_INFO = re.compile(r"-?\d+(?::-?\d+)*")


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """`feature_names` are () if the model was trained without; `objective` is "" for one of the user's own.

    `categorical` are the places of features that had categories in training, as far as trees could use them.
    """

    width: int
    feature_names: tuple[str, ...]
    objective: str
    class_count: int
    categorical: tuple[int, ...]


def read_checked_header(file: Path) -> ModelHeader:
    """Raises LoadFailed for a file that LightGBM did not write, and for one without all of its trees."""
    if not is_lightgbm_text(file):
        raise LoadFailed(
            f"{file.name} is not a model that LightGBM has written: its first line is not 'tree'. Write it "
            f"with booster.save_model({file.name!r}), of an estimator with model.booster_.save_model(...)."
        )
    try:
        with file.open("rb") as stream:
            lines = _read_section(stream)
            header = _parse_header(lines)
            sizes = [int(size) for size in lines.get("tree_sizes", "").split()]
            _check_classes(header, int(lines["num_tree_per_iteration"]), len(sizes))
            _check_trees(stream, sizes, header.width)
            _check_parameters_end(stream.read())
    except (KeyError, ValueError) as error:
        raise LoadFailed(
            f"{file.name} is cut short or was changed ({_describe(error)}). Copy the file again."
        ) from error
    return header


def _read_section(stream: BufferedReader) -> dict[str, str]:
    """The lines `name=value` up to the first empty one; all empty ones that follow are read too."""
    found: dict[str, str] = {}
    for _ in range(_MAX_LINES):
        line = stream.readline().decode()
        if line == "\n":
            _skip_empty_lines(stream)
            return found
        name, _, value = line.rstrip("\n").partition("=")
        found[name] = value
    raise ValueError("its head has no end")


def _skip_empty_lines(stream: BufferedReader) -> None:
    while stream.peek(1)[:1] == b"\n":
        stream.read(1)


def _parse_header(lines: dict[str, str]) -> ModelHeader:
    width = int(lines["max_feature_idx"]) + 1
    if not 0 < width <= MAX_FEATURES:
        raise ValueError(f"it says that rows have {width} features; there can be up to {MAX_FEATURES}")
    names = lines["feature_names"].split(" ")
    if len(names) != width:
        raise ValueError(f"it has names for {len(names)} of {width} features")
    infos = lines.get("feature_infos", "").split(" ")
    return ModelHeader(
        width=width,
        feature_names=() if all(map(_UNNAMED.fullmatch, names)) else tuple(names),
        objective=lines.get("objective", "").partition(" ")[0],
        class_count=int(lines["num_class"]),
        categorical=tuple(place for place, info in enumerate(infos) if _CATEGORICAL_INFO.fullmatch(info)),
    )


def _check_classes(header: ModelHeader, trees_at_once: int, trees: int) -> None:
    """Each round of training has made a tree for each class. Raises ValueError."""
    if not trees:
        raise ValueError("it has no trees")
    if header.class_count < 1 or trees_at_once != header.class_count or trees % trees_at_once:
        rounds = f"{trees_at_once} of each round of training"
        raise ValueError(f"it has {trees} trees, {rounds}, for {header.class_count} classes")


def _check_trees(stream: BufferedReader, sizes: Sequence[int], width: int) -> None:
    """Raises ValueError if a tree is not where it should be, or is none. `stream` is at the first one."""
    for number, size in enumerate(sizes):
        title = b"Tree=%d\n" % number
        if size < len(title) or stream.read(len(title)) != title:
            raise ValueError(f"tree {number} of {len(sizes)} is not in its place")
        check_tree(stream.read(size - len(title)).decode(), width)
    if not _read_nonempty_line(stream).startswith(_ENDS_OF_TREES):
        raise ValueError("the end of its trees is missing")


def _read_nonempty_line(stream: BufferedReader) -> bytes:
    """The next line that is not empty."""
    return next((line for line in stream if line != b"\n"), b"")


def _check_parameters_end(text: bytes) -> None:
    """What follows the trees: what training was told, since version 2.2. Raises ValueError."""
    if b"\nparameters:" in text and b"\nend of parameters" not in text:
        raise ValueError("the end of its parameters is missing")


def _describe(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
