"""Reads the binary format in which XGBoost 0.6 to 3.0 wrote models, which XGBoost 3.1 and later no longer
read.

All numbers are little-endian; a text is its length in eight bytes and its UTF-8. In this order: `binf` (not
in all files), the learner's parameters, the names of objective and booster, the booster, and attributes. A
booster of trees is its parameters, the trees (parameters, nodes, statistics of the nodes), the group of each
tree, and the weight of each where it is DART; a linear one is parameters and weights. Versions before 1.0
wrote more behind the attributes, of which nothing is needed to predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"binf"
BOOSTERS = ("gbtree", "dart", "gblinear")
# Bits of a node's or a feature's index. The bit above is the node's side, or the way of missing values.
INDEX_MASK = 2**31 - 1
_DELETED_SPLIT = 2**32 - 1

_LEARNER_HEADER = np.dtype(
    [
        ("base_score", "<f4"),
        ("features", "<u4"),
        ("classes", "<i4"),
        ("has_attributes", "<i4"),
        ("has_metrics", "<i4"),
        ("major", "<u4"),
        ("minor", "<u4"),
        ("targets", "<u4"),
        ("reserved", "<i4", 26),
    ]
)
_TREES_HEADER = np.dtype([("trees", "<i4"), ("parallel", "<i4"), ("reserved", "<i4", 38)])
_TREE_HEADER = np.dtype(
    [
        ("roots", "<i4"),
        ("nodes", "<i4"),
        ("deleted", "<i4"),
        ("depth", "<i4"),
        ("features", "<i4"),
        ("leaf_vector", "<i4"),
        ("reserved", "<i4", 31),
    ]
)
NODE_DTYPE = np.dtype(
    [("parent", "<u4"), ("left", "<i4"), ("right", "<i4"), ("split", "<u4"), ("threshold", "<f4")]
)
STATISTIC_DTYPE = np.dtype([("gain", "<f4"), ("hessian", "<f4"), ("weight", "<f4"), ("leaves", "<i4")])
_LINEAR_BYTES = 34 * 4
# Those that early versions wrote with `save_model`, whatever they are called.
_MODEL_FILES = ("model.bst", "model.joblib", "model.pkl")


class MalformedModel(Exception):
    """The bytes are no such model; the message says where they stop being one."""


@dataclass(frozen=True, slots=True)
class BinaryTree:
    """A tree as it is stored: one entry per node in both arrays."""

    deleted: int
    nodes: NDArray[Any]
    statistics: NDArray[Any]


@dataclass(frozen=True, slots=True)
class BinaryModel:
    """What such a file says. `version` is 0.0 for all before 1.0, whose `base_score` is a margin.

    A linear booster has `linear`, its weights, and no trees. `parallel` is the number of trees that a round
    adds for each group, where the file has it (since 1.6), else 1. `dropout` are the weights of DART.
    """

    version: tuple[int, int]
    base_score: np.float32
    features: int
    classes: int
    targets: int
    objective: str
    booster: str
    trees: tuple[BinaryTree, ...]
    groups: NDArray[np.int32]
    parallel: int
    dropout: NDArray[np.float32]
    linear: NDArray[np.float32]
    attributes: Mapping[str, str]


def is_binary_model(data: bytes) -> bool:
    """Whether a file begins as such a model does."""
    try:
        _, _, booster = _read_header(_BinaryReader(data))
    except MalformedModel:
        return False
    return booster in BOOSTERS


def read_version(data: bytes) -> str:
    """The version that wrote the model, as far as it says so."""
    learner, _, _ = _read_header(_BinaryReader(data))
    return f"{learner['major']}.{learner['minor']}" if learner["major"] else "0.x"


def parse_model(data: bytes) -> BinaryModel:
    """Read a whole file. Raises MalformedModel."""
    reader = _BinaryReader(data)
    learner, objective, booster = _read_header(reader)
    version = (int(learner["major"]), int(learner["minor"]))
    trees: tuple[BinaryTree, ...] = ()
    groups, dropout = np.zeros(0, np.int32), np.zeros(0, np.float32)
    linear, parallel = np.zeros(0, np.float32), 1
    if booster == "gblinear":
        reader.read_bytes(_LINEAR_BYTES)
        linear = reader.read_floats()
    elif booster in BOOSTERS:
        model = reader.read_record(_TREES_HEADER)
        features, old = int(learner["features"]), version < (1, 0)
        trees = tuple(_read_tree(reader, features, old=old) for _ in range(int(model["trees"])))
        groups = reader.read_array(np.dtype("<i4"), len(trees)).astype(np.int32)
        if np.any((groups < 0) | (groups >= max(learner["classes"], learner["targets"], 1))):
            raise MalformedModel("a tree is of no class")
        parallel = int(model["parallel"]) if version >= (1, 6) else 1
        if booster == "dart" and trees:
            dropout = reader.read_floats()
    else:
        raise MalformedModel(f"its booster is called {booster!r}")
    attributes = _read_attributes(reader) if learner["has_attributes"] else {}
    if version >= (1, 0) and reader.remaining:
        raise MalformedModel(f"{reader.remaining} bytes are left behind its end")
    return BinaryModel(
        version=version,
        base_score=np.float32(learner["base_score"]),
        features=int(learner["features"]),
        classes=int(learner["classes"]),
        targets=max(int(learner["targets"]), 1),
        objective=objective,
        booster=booster,
        trees=trees,
        groups=groups,
        parallel=max(parallel, 1),
        dropout=dropout,
        linear=linear,
        attributes=attributes,
    )


class _BinaryReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = len(MAGIC) if data.startswith(MAGIC) else 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._offset

    def read_bytes(self, size: int) -> bytes:
        if not 0 <= size <= self.remaining:
            raise MalformedModel(f"it is cut off after {len(self._data)} bytes (upload it again)")
        begin, self._offset = self._offset, self._offset + size
        return self._data[begin : self._offset]

    def read_array(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        return np.frombuffer(self.read_bytes(dtype.itemsize * count), dtype)

    def read_record(self, dtype: np.dtype[Any]) -> Any:
        return self.read_array(dtype, 1)[0]

    def read_count(self) -> int:
        return int.from_bytes(self.read_bytes(8), "little")

    def read_floats(self) -> NDArray[np.float32]:
        return self.read_array(np.dtype("<f4"), self.read_count()).astype(np.float32)

    def read_text(self) -> str:
        return self.read_bytes(self.read_count()).decode(errors="replace")


def _read_header(reader: _BinaryReader) -> tuple[Any, str, str]:
    return reader.read_record(_LEARNER_HEADER), reader.read_text(), reader.read_text()


def _read_tree(reader: _BinaryReader, features: int, *, old: bool) -> BinaryTree:
    parameters = reader.read_record(_TREE_HEADER)
    count = int(parameters["nodes"])
    if count < 1 or parameters["roots"] != 1:
        raise MalformedModel(f"a tree has {count} nodes and {parameters['roots']} roots")
    nodes, statistics = reader.read_array(NODE_DTYPE, count), reader.read_array(STATISTIC_DTYPE, count)
    if old and parameters["leaf_vector"]:
        raise MalformedModel("its leaves are vectors")
    _check_nodes(nodes, features)
    return BinaryTree(int(parameters["deleted"]), nodes, statistics)


def _check_nodes(nodes: NDArray[Any], features: int) -> None:
    """Raise MalformedModel unless it is a tree: code that walks it does not check for cycles."""
    inner = np.flatnonzero((nodes["left"] != -1) & (nodes["split"] != _DELETED_SPLIT))
    for side in ("left", "right"):
        children = nodes[side][inner]
        if np.any((children < 1) | (children >= len(nodes))):
            raise MalformedModel("a node has a child that is not there")
        if np.any(nodes["parent"][children] & INDEX_MASK != inner):
            raise MalformedModel("a node has a child of another node")
    if np.any(nodes["split"][inner] & INDEX_MASK >= features):
        raise MalformedModel("a node asks for a feature that is not there")


def _read_attributes(reader: _BinaryReader) -> dict[str, str]:
    return {reader.read_text(): reader.read_text() for _ in range(reader.read_count())}


def convert_files(folder: Path) -> tuple[str, ...]:
    """Convert models in XGBoost's old binary format, and say which. Raises LoadFailed."""
    texts = []
    for file in (folder / name for name in _MODEL_FILES if (folder / name).is_file()):
        data = file.read_bytes()
        if not is_binary_model(data):
            continue
        # It imports XGBoost.
        from serving.runtimes.xgboost_runtime.legacy_conversion import convert_to_ubjson  # noqa: PLC0415

        converted = file.with_name(f".{file.name}.converted")
        converted.write_bytes(convert_to_ubjson(data, file.name))
        converted.replace(file)
        texts.append(
            f"{file.name} is in the old binary format of XGBoost {read_version(data)}; it was converted."
        )
    return tuple(texts)
