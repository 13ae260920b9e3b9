"""Paths of predictions over HTTP, of every protocol: what is asked for, and of which model."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from serving.protocols import Dialect

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
_KINDS = (
    (Dialect.AI_PLATFORM, _AI_PLATFORM),
    (Dialect.TENSORFLOW, _TENSORFLOW),
    (Dialect.INFERENCE, _INFERENCE),
)
# Paths of which it is remembered what they say, and the longest of them.
_PATHS, _LONGEST = 1024, 512


class Path(NamedTuple):
    """What the path of a prediction says. `project` is "" where it names none, `version` and `label` too."""

    dialect: Dialect
    verb: str
    model: str
    project: str = ""
    version: str = ""
    label: str = ""


def parse(path: str) -> Path | None:
    """What a path says, after its escapes are undone; None for one that is of no prediction."""
    return (_remembered if len(path) <= _LONGEST else _parse)(path)


def _parse(path: str) -> Path | None:
    for dialect, kind in _KINDS:
        match = kind.fullmatch(path)
        if match is not None:
            found = {name: value for name, value in match.groupdict().items() if value is not None}
            return Path(dialect, **found)
    return None


_remembered = lru_cache(_PATHS)(_parse)


def dialect_of(path: str) -> Dialect:
    """Whose errors the clients of a path understand, also where nothing is there."""
    if path == "/v2" or path.startswith("/v2/"):
        return Dialect.INFERENCE
    return Dialect.TENSORFLOW if path.startswith("/v1/models/") else Dialect.AI_PLATFORM
