"""A `tf.Example` that a graph can parse, made of what the graph says of its features."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

_PARSE_OPS = ("ParseExample", "ParseExampleV2")


def make_serialized_examples(graph: Any) -> Iterator[bytes]:
    """One for each op of a GraphDef that parses them, in its functions too; all that it must have is zero."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        named = {node.name: node for node in nodes}
        for node in nodes:
            if node.op in _PARSE_OPS:
                keys = list(_read_dense_keys(node, named))
                kinds = [tf.dtypes.as_dtype(kind) for kind in node.attr["Tdense"].list.type]
                shapes = list(node.attr["dense_shapes"].list.shape)
                if len(keys) == len(kinds) == len(shapes):
                    yield _make_example(zip(keys, kinds, map(_count_values, shapes), strict=True))


def _read_dense_keys(node: Any, named: Mapping[str, Any]) -> Iterator[str]:
    """The names of the features that have a fixed number of values."""
    # serialized, names, then keys: as one tensor each of sparse and dense ones, or as a tensor for each key.
    if node.op == "ParseExampleV2":
        places: Iterable[int] = (3,)
    else:
        sparse, dense = node.attr["Nsparse"].i, node.attr["Ndense"].i
        places = range(2 + sparse, 2 + sparse + dense)
    for place in places:
        constant = named.get(node.input[place].partition(":")[0])
        if constant is not None and constant.op == "Const":
            keys = tf.make_ndarray(constant.attr["value"].tensor)
            yield from (key.decode() for key in np.ravel(keys).tolist())


def _count_values(shape: Any) -> int:
    return math.prod(max(dimension.size, 1) for dimension in shape.dim)


def _make_example(features: Iterable[tuple[str, Any, int]]) -> bytes:
    example = tf.train.Example()
    for key, kind, size in features:
        feature = example.features.feature[key]
        if kind == tf.string:
            feature.bytes_list.value.extend([b""] * size)
        elif kind == tf.int64:
            feature.int64_list.value.extend([0] * size)
        else:
            feature.float_list.value.extend([0.0] * size)
    written: bytes = example.SerializeToString(deterministic=True)
    return written
