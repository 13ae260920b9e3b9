"""What is left of an answer by a field mask."""

from __future__ import annotations

from typing import Any

import pytest

from serving.errors import InvalidArgument
from serving.gateway.api.partial_responses import parse_field_mask, select_fields

ANSWER = {
    "models": [
        {"name": "a", "labels": {"x": "1", "y": "2"}, "defaultVersion": {"name": "v", "state": "READY"}},
        {"name": "b", "etag": "E"},
    ],
    "nextPageToken": "t",
}


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        ("*", ANSWER),
        ("nextPageToken", {"nextPageToken": "t"}),
        ("next_page_token", {"nextPageToken": "t"}),
        ("models/name", {"models": [{"name": "a"}, {"name": "b"}]}),
        ("models(name,etag)", {"models": [{"name": "a"}, {"name": "b", "etag": "E"}]}),
        ("models/labels/x,models/name", {"models": [{"name": "a", "labels": {"x": "1"}}, {"name": "b"}]}),
        (
            "models(defaultVersion(name,state),labels/y),nextPageToken",
            {
                "models": [{"defaultVersion": {"name": "v", "state": "READY"}, "labels": {"y": "2"}}, {}],
                "nextPageToken": "t",
            },
        ),
        ("models/name,models", {"models": ANSWER["models"]}),
        ("models,models/name", {"models": ANSWER["models"]}),
        ("absent", {}),
    ],
)
def test_a_mask_selects(mask: str, wanted: Any) -> None:
    """In lists, what their elements have."""
    assert select_fields(ANSWER, parse_field_mask(mask)) == wanted


@pytest.mark.parametrize(
    "mask",
    [
        *(
            ",",
            "a,",
            ",a",
            "a,,b",
            "a(",
            "a()",
            "a)",
            "(a)",
            "a(b",
            "a/",
            "/a",
            "a//b",
            "a b",
            "a;b",
            "é",
            "a(b)c",
        ),
        "(".join("a" * 18) + ")" * 17,
        "/".join("a" * 18),
        f"x({'a/' * 1000}a),x({'a/' * 1000}a)",
        "a" * 5000,
    ],
)
def test_what_is_no_mask_is_refused(mask: str) -> None:
    """In one sentence, with an example."""
    with pytest.raises(InvalidArgument, match="Field: fields Error: Cannot read"):
        parse_field_mask(mask)
