"""Paths of predictions over HTTP, of every protocol: what is requested, and of which model."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from serving.errors import InvalidArgument, NotFound, ServingError, method_not_allowed
from serving.protocols import Dialect

_MODELS = "/v1/models"
_AI_PLATFORM = re.compile(
    r"/v1/projects/(?P<project>[^/]+)/models/(?P<model>[^/]+?)(?:/versions/(?P<version>[^/]+?))?"
    r":(?P<verb>predict)"
)
_TENSORFLOW = re.compile(
    r"/v1/models/(?P<model>[^/]+?)(?:/versions/(?P<version>[^/]+?)|/labels/(?P<label>[^/]+?))?"
    r":(?P<verb>predict|classify|regress)"
)
_INFERENCE = re.compile(
    r"/v2/models/(?:projects/(?P<project>[^/]+)/models/)?(?P<model>[^/]+)"
    r"(?:/versions/(?P<version>[^/]+))?/(?P<verb>infer)"
)
_PATTERNS = (
    (Dialect.AI_PLATFORM, _AI_PLATFORM),
    (Dialect.TENSORFLOW, _TENSORFLOW),
    (Dialect.INFERENCE, _INFERENCE),
)
# Cloud Logging's, beside those of the Open Inference Protocol.
LOG_ENTRIES_PATH = "/v2/entries:list"
# Cached paths, and the longest of them.
_CACHE_SIZE, _MAX_CACHED_LENGTH = 1024, 512


class PredictionPath(NamedTuple):
    """The parts of a prediction's path. `project`, `version` and `label` are "" where it has none."""

    dialect: Dialect
    verb: str
    model: str
    project: str = ""
    version: str = ""
    label: str = ""


def parse_prediction_path(path: str) -> PredictionPath | None:
    """Parse a path whose escapes are decoded; None for one that is of no prediction."""
    return (_match_path_cached if len(path) <= _MAX_CACHED_LENGTH else _match_path)(path)


def _match_path(path: str) -> PredictionPath | None:
    for dialect, kind in _PATTERNS:
        match = kind.fullmatch(path)
        if match is not None:
            found = {name: value for name, value in match.groupdict().items() if value is not None}
            return PredictionPath(dialect, **found)
    return None


_match_path_cached = lru_cache(_CACHE_SIZE)(_match_path)


def detect_dialect(path: str) -> Dialect:
    """Return the dialect whose errors the clients of a path understand, even if nothing is there."""
    if path == "/v2" or (path.startswith("/v2/") and path != LOG_ENTRIES_PATH):
        return Dialect.INFERENCE
    if path == _MODELS or path.startswith(f"{_MODELS}/"):
        return Dialect.TENSORFLOW
    return Dialect.AI_PLATFORM


def path_not_found_error(method: str, path: str, where: str) -> ServingError:
    """`where` says which paths there are."""
    if detect_dialect(path) is Dialect.TENSORFLOW:
        return _malformed_request_error(method, path)
    return NotFound(f"Nothing is at {path}. {where}")


def wrong_method_error(method: str, path: str, allow: str) -> ServingError:
    """The error for a path that exists, but not for this HTTP method."""
    if detect_dialect(path) is Dialect.TENSORFLOW:
        return _malformed_request_error(method, path)
    return method_not_allowed(method, path, allow)


def _malformed_request_error(method: str, path: str) -> InvalidArgument:
    """The one error that TensorFlow Serving has for every path and method that it does not know."""
    if path.rstrip("/") == _MODELS and method == "GET":
        return InvalidArgument("Missing model name in request: GET /v1/models/MODEL.")
    return InvalidArgument(
        f"Malformed request: {method} {path}. "
        f"There are POST {_MODELS}/MODEL[/versions/N or /labels/L]:predict, :classify and :regress, "
        f"and GET {_MODELS}/MODEL[/versions/N or /labels/L][/metadata]; "
        "see docs/protocols.md."
    )
