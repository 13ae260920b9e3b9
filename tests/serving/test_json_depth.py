"""JSON that is nested too deeply, and all other JSON."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidInputs
from serving.json_depth import ORJSON_MAX_DEPTH, TooDeepError, parse_json
from serving.runtimes import RowsFormat
from serving.runtimes.json_codec import InstancesDecoder

SCALARS = (
    st.none() | st.booleans() | st.integers(-100, 100) | st.text(st.sampled_from('[]{}"\\a,'), max_size=9)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(value=VALUES, levels=st.integers(2, 6))
def test_the_limit_is_exact(value: Any, levels: int) -> None:
    """Brackets in texts do not count."""
    body = orjson.dumps(value)
    if depth(value) > levels:
        with pytest.raises(TooDeepError, match=f"more than {levels} levels"):
            parse_json(body, levels)
    else:
        assert parse_json(body, levels) == value


@given(body=st.text(st.sampled_from('[]{},:"\\1 '), max_size=40).map(str.encode), levels=st.integers(2, 4))
def test_what_is_no_json_is_told_as_ever(body: bytes, levels: int) -> None:
    """With its place in what was sent."""
    try:
        expected = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        with pytest.raises(orjson.JSONDecodeError) as caught:
            parse_json(body, levels)
        assert (caught.value.msg, caught.value.pos) == (error.msg, error.pos)
    else:
        if depth(expected) <= levels:
            assert parse_json(body, levels) == expected


@pytest.mark.parametrize("body", [b"[[[[1],[2]", b"[[[1]]],[[[2]]]", b"]" * 9 + b"[" * 9, b"[[[1]]][[[2]]]"])
def test_two_texts_are_none(body: bytes) -> None:
    """Whatever is put around them."""
    with pytest.raises(orjson.JSONDecodeError):
        parse_json(body, 3)


@pytest.mark.parametrize("levels", [100, ORJSON_MAX_DEPTH, 5000])
def test_no_limit_goes_beyond_that_of_the_parser(levels: int) -> None:
    """Which is found out fast."""
    most = min(levels, ORJSON_MAX_DEPTH)
    assert isinstance(parse_json(b"[" * most + b"]" * most, levels), list)
    for deep in (most + 1, 5_000_000):
        with pytest.raises(TooDeepError, match=f"more than {most} levels"):
            parse_json(b"[" * deep + b"]" * deep, levels)


@pytest.mark.parametrize("key", [b"instances", b"other"])
@pytest.mark.parametrize("padding", [0, 2000])
def test_a_deep_body_is_refused_wherever_it_is_deep(key: bytes, padding: int) -> None:
    """In the instances or beside them, in small bodies and large ones."""
    decoder = InstancesDecoder(20)
    for deep, good in ((18, True), (20, False)):
        value = b"[" * deep + b"1" + b"]" * deep
        body = b'{"instances": [[1, 2]], "' + key + b'": [' + value + b"]" + b" " * padding + b"}"
        if good:
            decoder.decode(body, lambda _: RowsFormat())
        else:
            with pytest.raises(InvalidInputs, match=r"more than 20 levels \(setting max_json_depth\)"):
                decoder.decode(body, lambda _: RowsFormat())
