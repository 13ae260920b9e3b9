"""What is in a file of XGBoost: its format, the version that wrote it, and whether it is whole.

XGBoost itself asks for none of that. It reads a file of a later version as well as it can, which may mean
wrong answers (3.0 takes the base scores of 3.1 for zero), and a file that was cut short may end the process.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum

import msgspec
import xgboost as xgb

from serving.errors import LoadFailed
from serving.predictor.runtime_versions import list_runtime_versions_by_xgboost
from serving.runtimes.xgboost_runtime import legacy_binary
from serving.runtimes.xgboost_runtime.legacy_conversion import convert_to_ubjson, logit

# How many numbers a leaf has, in a tree of JSON or of UBJSON.
_LEAF_SIZE = re.compile(rb'size_leaf_vector(?:"\s*:\s*"|SL\x00{7}.)(\d+)', re.DOTALL)
# The members of a document are in the order of their names, so this is its end.
_VERSION_PATTERN = rb"L\x00{7}\x07version\[#L\x00{7}\x03i(.)i(.)i(.)\}"

_INSTALLED_VERSION = tuple(int(part) for part in re.findall(r"\d+", xgb.__version__)[:2])
# The first that keeps leaves of vectors in an array of their own; given older ones it ends the process.
_FIRST_WITH_VECTOR_LEAVES = (3, 2)
# What is in the states of boosters that XGBoost 1.3 to 1.5, 1.0 to 1.2 and 0.x pickled.
_OLD_PICKLE_MARKS = (
    b'{"Config":{"learner"',
    b"CONFIG-offset:",
    *(bytes([len(name)]) + bytes(7) + name.encode() for name in legacy_binary.BOOSTERS),
)


class XgboostFormat(StrEnum):
    """How XGBoost writes models; a pickle of one is none of these."""

    JSON = "JSON"
    UBJSON = "UBJSON"
    BINARY = "BINARY"
    OTHER = "OTHER"


class _Objective(msgspec.Struct, frozen=True):
    name: str = ""


class _Linear(msgspec.Struct, frozen=True):
    boosted_rounds: int | None = None


class _GradientBooster(msgspec.Struct, frozen=True):
    name: str = ""
    model: _Linear = _Linear()


class _Learner(msgspec.Struct, frozen=True):
    gradient_booster: _GradientBooster = _GradientBooster()
    objective: _Objective = _Objective()


class _Document(msgspec.Struct, frozen=True):
    """As much of a model in JSON as tells what has to be checked; all else is passed over."""

    version: tuple[int, int, int] = (0, 0, 0)
    learner: _Learner = _Learner()


def detect_format(data: bytes) -> XgboostFormat:
    """The format, told from how a file begins."""
    if data.startswith(b"{"):
        return XgboostFormat.UBJSON if data[1:2] in (b"L", b"i", b"U") else XgboostFormat.JSON
    return XgboostFormat.BINARY if legacy_binary.is_binary_model(data) else XgboostFormat.OTHER


def to_readable_model(data: bytes, name: str) -> bytes:
    """The model as this XGBoost reads it rightly. Raises LoadFailed with what to do."""
    match detect_format(data):
        case XgboostFormat.BINARY:
            return convert_to_ubjson(data, name)
        case XgboostFormat.JSON:
            return _to_readable_json(data, name)
        case XgboostFormat.UBJSON:
            found = re.search(_VERSION_PATTERN + rb"$", data[-64:], re.DOTALL)
            if found is None:
                raise LoadFailed(
                    _unreadable_message(name, f"it is cut off after {len(data)} bytes: upload it again")
                )
            _check_version(data, _parse_version(found), name)
            return data
    if data.startswith(b"bs64"):
        raise LoadFailed(
            _unreadable_message(name, "it is text in base64, as XGBoost before 0.6 wrote it; train it anew")
        )
    raise LoadFailed(
        _unreadable_message(name, f"it begins with {data[:8]!r}" if data else "it is empty: upload it again")
    )


def check_pickle(data: bytes, name: str) -> None:
    """Refuse a pickle with a booster that this XGBoost would take for another. Raises LoadFailed."""
    for found in re.finditer(_VERSION_PATTERN, data, re.DOTALL):
        _check_version(data, _parse_version(found), name)
    if any(mark in data for mark in _OLD_PICKLE_MARKS):
        raise LoadFailed(_old_pickle_message(name))


def _to_readable_json(data: bytes, name: str) -> bytes:
    try:
        # XGBoost writes NaN for what it does not know, which Python's parser takes, and no other.
        document = msgspec.convert(json.loads(data), _Document) if b"NaN" in data else _decode_document(data)
    except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as error:
        raise LoadFailed(_unreadable_message(name, str(error))) from error
    _check_version(data, document.version, name)
    return _amend_document(data, document)


def _decode_document(data: bytes) -> _Document:
    return msgspec.json.decode(data, type=_Document)


def _amend_document(data: bytes, document: _Document) -> bytes:
    """With what early versions left out or meant otherwise, and this XGBoost would misunderstand."""
    learner = document.learner
    lacks_rounds = (
        learner.gradient_booster.name == "gblinear" and learner.gradient_booster.model.boosted_rounds is None
    )
    has_probability_base_score = (1, 0, 0) <= document.version < (
        1,
        3,
        0,
    ) and learner.objective.name == "binary:logitraw"
    if not lacks_rounds and not has_probability_base_score:
        return data
    whole = json.loads(data)
    if lacks_rounds:  # a model of no rounds has no base score
        whole["learner"]["gradient_booster"]["model"]["boosted_rounds"] = 1
    if has_probability_base_score:  # until 1.3 the base score of this objective was a probability
        parameters = whole["learner"]["learner_model_param"]
        parameters["base_score"] = str(logit(float(parameters["base_score"])))
    return json.dumps(whole).encode()


def _parse_version(found: re.Match[bytes]) -> tuple[int, int, int]:
    major, minor, patch = (part[0] for part in found.groups())
    return major, minor, patch


def _check_version(data: bytes, written: tuple[int, int, int], name: str) -> None:
    version = ".".join(map(str, written))
    if written[:2] > _INSTALLED_VERSION:
        raise LoadFailed(
            f"{name} was written by XGBoost {version}; this server has {xgb.__version__}, which may read it "
            "wrongly. Install the later one where the server runs (pip install "
            f"'xgboost>={written[0]}.{written[1]}') and start the server again, or train and save the model "
            f"with XGBoost {xgb.__version__}."
        )
    leaf = _LEAF_SIZE.search(data)
    if leaf and int(leaf[1]) > 1 and written[:2] < _FIRST_WITH_VECTOR_LEAVES <= _INSTALLED_VERSION:
        raise LoadFailed(
            f"{name} has trees with vectors as leaves (multi_output_tree) of XGBoost {version}, which "
            f"XGBoost {xgb.__version__} does not read. Train it again with XGBoost {xgb.__version__}, or "
            "with multi_strategy='one_output_per_tree'."
        )


def _old_pickle_message(name: str) -> str:
    module = "joblib" if name.endswith(".joblib") else "pickle"
    known = ", ".join(
        f"{version} has {xgboost}" for xgboost, version in list_runtime_versions_by_xgboost().items()
    )
    read = f"joblib.load('{name}')" if module == "joblib" else f"pickle.load(open('{name}', 'rb'))"
    return (
        f"{name} was pickled with XGBoost 1.5 or an earlier one, whose pickles XGBoost {xgb.__version__} "
        f'does not read. With the version that wrote it: python -c "import {module}; '
        f"{read}.save_model('model.bst')\", and deploy model.bst alone; of a classifier that answers "
        "probabilities, not labels. Or have that version compute it: `pilotlight runtimes add VERSION "
        f"--create`, and create the version with that runtimeVersion ({known})."
    )


def _unreadable_message(name: str, reason: str) -> str:
    return f"{name} is not a model that XGBoost {xgb.__version__} can read: {reason}."
