"""Converts models from XGBoost's old binary format to UBJSON, which current versions of XGBoost read.

The result is verified: the sums over trees of the new model must be those that treelite, which has a reader
of its own, finds in the original, to the bit and on rows around all thresholds. Treelite has no reader for
linear models; their weights are multiplied here.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import xgboost as xgb
from numpy.typing import NDArray

from serving.acceleration.xgboost import candidates, verification_rows
from serving.errors import LoadFailed
from serving.runtimes import feature_rows
from serving.runtimes.xgboost_runtime.legacy_binary import (
    INDEX_MASK,
    MAGIC,
    NODE_DTYPE,
    STATISTIC_DTYPE,
    BinaryModel,
    BinaryTree,
    MalformedModel,
    parse_model,
)

# XGBoost reads no other types in arrays of one type.
_ARRAY_TYPES = {np.dtype(np.float32): b"d", np.dtype(np.int32): b"l", np.dtype(np.uint8): b"U"}


def encode_ubjson(value: Any) -> bytes:
    """A document of dicts, lists, texts, integers, floats (as float32) and arrays of one dimension."""
    match value:
        case dict():
            members = (_encode_text(name) + encode_ubjson(member) for name, member in value.items())
            return b"{" + b"".join(members) + b"}"
        case list():
            return b"[" + b"".join(map(encode_ubjson, value)) + b"]"
        case str():
            return b"S" + _encode_text(value)
        case int():
            return b"L" + struct.pack(">q", value)
        case float():
            return b"d" + struct.pack(">f", value)
        case np.ndarray():
            swapped = value.astype(value.dtype.newbyteorder(">"))
            return b"[$" + _ARRAY_TYPES[value.dtype] + b"#" + encode_ubjson(value.size) + swapped.tobytes()
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written as XGBoost's UBJSON")


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return encode_ubjson(len(data)) + data


_DEFAULT_LEFT = 2**31
# A neighbouring float32 may be what is taken for another one by way of a logarithm.
_NEIGHBOUR_STEPS = 4
_LINEAR_TOLERANCE = 1e-5
# Rows for linear models, which have values in all columns; fewer where they would be of more numbers.
_MAX_ROWS, _MIN_ROWS, _MAX_NUMBERS = 64, 3, 1 << 22
# XGBoost 3.1 and later forget the link of the base score where a model has no trees: one that adds nothing.
_EMPTY_TREE = BinaryTree(
    0,
    np.array([(2**32 - 1, -1, -1, 0, 0.0)], NODE_DTYPE),
    np.zeros(1, STATISTIC_DTYPE),
)
_TREELITE_OBJECTIVES = {True: "multi:softprob", False: "reg:squarederror"}


class ConversionMismatch(Exception):
    """The converted model is not the original; the message says in what."""


def convert_to_ubjson(data: bytes, name: str) -> bytes:
    """The same model in UBJSON. Raises LoadFailed, with what to do, where that is not certain."""
    try:
        model = parse_model(data)
        _check_width(model)
        converted = encode_ubjson(_build_document(model, _read_objective(model), _find_base_score(model)))
        booster = _load_booster(converted)
        if model.booster == "gblinear":
            verify_linear(model, booster)
        elif model.trees:
            verify_trees(model, booster, _replace_objective(data, model))
        return bytes(booster.save_raw("ubj"))
    except (MalformedModel, ConversionMismatch, xgb.core.XGBoostError, ValueError) as error:
        raise LoadFailed(_refusal_message(name, error)) from error


def _check_width(model: BinaryModel) -> None:
    if model.features > feature_rows.MAX_FEATURES:
        raise MalformedModel(
            f"its rows have {model.features} features, and there can be up to {feature_rows.MAX_FEATURES}"
        )


def _refusal_message(name: str, error: Exception) -> str:
    reason = str(error).partition("\nStack trace")[0].strip()
    return (
        f"{name} is in XGBoost's old binary format, which XGBoost {xgb.__version__} does not read, and it "
        f"could not be converted: {reason}. Convert it with an XGBoost that reads it, and deploy model.json "
        "alone: python -m venv old && old/bin/pip install 'xgboost<3.1' && old/bin/python -c "
        f"\"import xgboost; xgboost.Booster(model_file='{name}').save_model('model.json')\""
    )


# ---- the new document


def _build_document(model: BinaryModel, objective: dict[str, Any], base_score: np.float32) -> dict[str, Any]:
    return {
        "learner": {
            "attributes": {
                name: value
                for name, value in model.attributes.items()
                if name not in ("objective", "metrics")
            },
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": _build_gradient_booster(model),
            "learner_model_param": {
                "base_score": str(base_score),
                "num_class": str(model.classes),
                "num_feature": str(model.features),
                "num_target": str(model.targets),
            },
            "objective": objective,
        },
        "version": [3, 0, 0],
    }


def _build_gradient_booster(model: BinaryModel) -> dict[str, Any]:
    if model.booster == "gblinear":
        return {"name": "gblinear", "model": {"weights": model.linear, "boosted_rounds": 1}}
    trees: dict[str, Any] = {
        "name": "gbtree",
        "model": {
            "gbtree_model_param": {
                "num_trees": str(len(model.trees)),
                "num_parallel_tree": str(model.parallel),
            },
            "trees": [_build_tree(number, tree, model.features) for number, tree in enumerate(model.trees)],
            "tree_info": model.groups.tolist(),
        },
    }
    if not model.trees:
        trees["model"]["iteration_indptr"] = [0]
    if model.booster == "dart":
        return {"name": "dart", "gbtree": trees, "weight_drop": model.dropout.tolist()}
    return trees


def _build_tree(number: int, tree: BinaryTree, features: int) -> dict[str, Any]:
    nodes, statistics = tree.nodes, tree.statistics
    return {
        "id": number,
        "tree_param": {
            "num_nodes": str(len(nodes)),
            "num_deleted": str(tree.deleted),
            "num_feature": str(features),
            "size_leaf_vector": "1",
        },
        "left_children": nodes["left"].astype(np.int32),
        "right_children": nodes["right"].astype(np.int32),
        "parents": (nodes["parent"] & INDEX_MASK).astype(np.int32),
        "split_indices": (nodes["split"] & INDEX_MASK).astype(np.int32),
        "split_conditions": nodes["threshold"].astype(np.float32),
        "default_left": (nodes["split"] >= _DEFAULT_LEFT).astype(np.uint8),
        "loss_changes": statistics["gain"].astype(np.float32),
        "sum_hessian": statistics["hessian"].astype(np.float32),
        "base_weights": statistics["weight"].astype(np.float32),
    }


def _read_objective(model: BinaryModel) -> dict[str, Any]:
    """The objective with its parameters: those of the file, which has them since 1.0, else the defaults."""
    written = model.attributes.get("objective")
    if written is not None:
        found: dict[str, Any] = json.loads(written)
        return found
    name = model.objective.removeprefix("gpu:")
    parameters = {"objective": name, "num_class": model.classes} if model.classes else {"objective": name}
    untrained = xgb.train(
        {**parameters, "nthread": 1}, xgb.DMatrix(np.zeros((1, model.features)), label=[0.0]), 0
    )
    objective: dict[str, Any] = json.loads(untrained.save_config())["learner"]["objective"]
    return objective


def logit(probability: float) -> np.float32:
    """The margin of a probability."""
    return np.float32(-math.log(1.0 / probability - 1.0))


def _find_base_score(model: BinaryModel) -> np.float32:
    """What the sums begin with, before the objective's link; XGBoost before 1.0 stored it behind the link."""
    if model.version >= (1, 0):
        linked = model.version < (1, 3) and model.objective == "binary:logitraw"
        return logit(float(model.base_score)) if linked else model.base_score
    objective = _read_objective(model)
    scores = list(_iterate_base_scores(float(model.base_score)))
    margins = [_start_margin(model, objective, score) for score in scores]
    best = int(np.nanargmin(np.abs(np.array(margins) - model.base_score)))
    if abs(margins[best] - model.base_score) > 2 * np.spacing(np.abs(model.base_score)):
        raise ConversionMismatch(f"no base score of {model.objective} gives the margin {model.base_score}")
    return scores[best]


def _iterate_base_scores(margin: float) -> Iterator[np.float32]:
    """The numbers whose identity, logit or logarithm is the margin, with their neighbours in float32."""
    for guess in (margin, 1.0 / (1.0 + math.exp(min(-margin, 80.0))), math.exp(min(margin, 80.0))):
        below = above = np.float32(guess)
        yield below
        for _ in range(_NEIGHBOUR_STEPS):
            below, above = np.nextafter(below, np.float32(-np.inf)), np.nextafter(above, np.float32(np.inf))
            yield below
            yield above


def _start_margin(model: BinaryModel, objective: dict[str, Any], base_score: np.float32) -> float:
    """What a model with this base score begins its sums with; NaN where XGBoost refuses the score."""
    bare = replace(model, booster="gbtree", trees=(_EMPTY_TREE,), groups=np.zeros(1, np.int32), parallel=1)
    try:
        booster = _load_booster(encode_ubjson(_build_document(bare, objective, base_score)))
        return float(_predict_margins(booster, np.zeros((1, model.features))).flat[0])
    except xgb.core.XGBoostError:
        return math.nan


def _load_booster(document: bytes) -> Any:
    return xgb.Booster({"nthread": 1}, model_file=bytearray(document))


# ---- whether it is the original


def verify_trees(model: BinaryModel, booster: Any, original: bytes) -> None:
    """Raise ConversionMismatch unless treelite finds the trees of the booster in the original."""
    import treelite  # noqa: PLC0415  loaded where it is used

    with tempfile.NamedTemporaryFile(suffix=".bst") as file:
        file.write(original)
        file.flush()
        try:
            other = treelite.frontend.load_xgboost_model_legacy_binary(file.name)
        except treelite.TreeliteError as error:
            raise ConversionMismatch(f"treelite does not read it ({error})") from error
    header = other.get_header_accessor()
    header.set_field("base_scores", np.zeros_like(header.get_field("base_scores")))
    for rows in verification_rows.make_sparse_rows(candidates.read_trees(booster), model.features):
        theirs = treelite.gtil.predict(other, rows, nthread=1, pred_margin=True)
        ours = _predict_margins(booster, rows, begin=0.0)
        if theirs.size != ours.size or theirs.reshape(ours.shape).tobytes() != ours.tobytes():
            raise ConversionMismatch("treelite, which has a reader of its own, finds other trees in it")


def verify_linear(model: BinaryModel, booster: Any) -> None:
    """Raise ConversionMismatch unless the sums of the booster are those of the weights."""
    groups = max(model.classes, model.targets, 1)
    if model.linear.size != (model.features + 1) * groups:
        raise ConversionMismatch(f"it has {model.linear.size} weights for {model.features} features")
    weights = model.linear.astype(np.float64).reshape(model.features + 1, groups)
    rows = feature_rows.make_numeric_rows(
        max(_MIN_ROWS, min(_MAX_ROWS, _MAX_NUMBERS // model.features)), model.features
    )
    expected = rows @ weights[:-1] + weights[-1]
    got = _predict_margins(booster, rows, begin=0.0).reshape(expected.shape)
    scale = np.abs(rows) @ np.abs(weights[:-1]) + np.abs(weights[-1])
    if not np.all(np.abs(got - expected) <= _LINEAR_TOLERANCE * scale):
        raise ConversionMismatch("its weights give other sums")


def _predict_margins(booster: Any, rows: Any, begin: float | None = None) -> NDArray[np.float32]:
    """Sums over the trees; `begin` is what they begin with in place of the base score."""
    margins: NDArray[np.float32]
    margins = booster.predict(xgb.DMatrix(rows, nthread=1), output_margin=True, validate_features=False)
    if begin is None:
        return margins
    # A matrix of its own: XGBoost remembers what it predicted for one.
    matrix = xgb.DMatrix(rows, nthread=1, base_margin=np.full(margins.shape, begin, np.float32))
    margins = booster.predict(matrix, output_margin=True, validate_features=False)
    return margins


def _replace_objective(data: bytes, model: BinaryModel) -> bytes:
    """The original with an objective that treelite knows. The sums over trees do not depend on it."""
    begin = len(MAGIC) * data.startswith(MAGIC) + 136
    end = begin + 8 + len(model.objective.encode())
    name = _TREELITE_OBJECTIVES[model.classes > 1].encode()
    return data[:begin] + len(name).to_bytes(8, "little") + name + data[end:]
