from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidArgument
from serving.gateway.api.query.filters import compile_filter, find_required_values, parse_expression

VERSIONS: dict[str, dict[str, Any]] = {
    "a": {"name": "projects/p/models/m/versions/census_1", "state": "READY", "framework": "XGBOOST"},
    "b": {
        "name": "projects/p/models/m/versions/census_2",
        "state": "FAILED",
        "labels": {"team": "ads", "cost_center": "7"},
        "autoScaling": {"minNodes": 1},
    },
    "c": {
        "name": "projects/p/models/m/versions/rnn",
        "state": "READY",
        "isDefault": True,
        "description": "two words (really)",
    },
}


def found(text: str) -> str:
    matches = compile_filter(text)
    return "".join(key for key, version in VERSIONS.items() if matches(version))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "abc"),
        ("   ", "abc"),
        ("state:READY", "ac"),
        ("state=READY", "ac"),
        ("state = READY", "ac"),
        ("state!=READY", "b"),
        ("state:ready", ""),
        ("name:census*", "ab"),
        ("name=census_1", "a"),
        ("name:projects/p/models/m/versions/rnn", "c"),
        ("name:rnn*", "c"),
        ("name:nn", ""),
        ("name:*", "abc"),
        ("framework=XGB*", "a"),
        ("labels.team=ads", "b"),
        ("labels.cost_center=7", "b"),
        ("labels.team:*", "abc"),
        ("labels.costCenter=7", ""),
        ("auto_scaling.min_nodes=1", "b"),
        ("autoScaling.minNodes=1", "b"),
        ("isDefault:true", "c"),
        ("is_default=true", "c"),
        ('description="two words (really)"', "c"),
        ('description:"two*"', "c"),
        ("state:READY AND name:census*", "a"),
        ("state:READY name:census*", "a"),
        ("state:FAILED OR framework=XGBOOST", "ab"),
        ("state:READY AND name:rnn OR framework=XGBOOST", "ac"),
        ("name:rnn OR framework=XGBOOST AND state:READY", "ac"),
        ("NOT state:READY", "b"),
        ("-state:READY", "b"),
        ("NOT (state:READY OR name:rnn)", "b"),
        ("NOT NOT state:READY", "ac"),
        ("-(state:READY) OR name:rnn", "bc"),
        ("(state:READY AND (name:rnn OR name:census_1))", "ac"),
        ("((state:READY))", "ac"),
        ("nothing:here", ""),
        ("state.deeper=READY", ""),
    ],
)
def test_filter(text: str, wanted: str) -> None:
    """What each form of a filter finds."""
    assert found(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "census",
        "state:",
        "state:READY AND",
        "AND state:READY",
        "state:READY OR",
        "OR",
        "NOT",
        "-",
        "(state:READY",
        "state:READY)",
        "()",
        "state~READY",
        "state>READY",
        'state:"READY',
        "state:READY AND AND name:a",
        "(" * 5000,
        "NOT " * 5000 + "state:READY",
        "state:READY " * 5000,
    ],
)
def test_a_filter_that_cannot_be_read(text: str) -> None:
    """It is refused, whatever its size, with an example or the limit."""
    with pytest.raises(InvalidArgument) as caught:
        compile_filter(text)

    assert caught.value.field == "filter"
    assert "state:READY AND name:census*" in caught.value.message or "200 parts" in caught.value.message


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", None),
        ("state:RUNNING", {"RUNNING"}),
        ('state = "RUNNING"', {"RUNNING"}),
        ("state:RUNNING OR state:QUEUED", {"RUNNING", "QUEUED"}),
        ("state:RUNNING OR jobId:a", None),
        ("jobId:a AND (state:RUNNING OR state:QUEUED)", {"RUNNING", "QUEUED"}),
        ("(state:RUNNING OR state:QUEUED) AND state:QUEUED", {"QUEUED"}),
        ("state!=RUNNING", None),
        ("NOT state:RUNNING", None),
        ("state:R*", None),
    ],
)
def test_the_values_that_a_field_must_have(text: str, values: set[str] | None) -> None:
    assert find_required_values(parse_expression(text), "state") == values


@given(st.text(alphabet='ab:=!*()-"NOTAD R', max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but InvalidArgument ever comes out, and what was read can be asked."""
    try:
        matches = compile_filter(text)
    except InvalidArgument:
        return
    assert matches(VERSIONS["a"]) in (True, False)
