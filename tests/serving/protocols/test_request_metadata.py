from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidArgument, NotAcceptable, ServingError
from serving.http_headers import ACCEPT, BINARY, CONTENT_TYPE, JSON, JSON_BYTES, NPY, negotiate_media_type
from serving.protocols import (
    DEFAULT_METADATA,
    MAX_METADATA_BYTES,
    Dialect,
    RequestMetadata,
    decode_metadata,
    encode_metadata,
)
from serving.protocols.paths import PredictionPath, parse_prediction_path
from serving.protocols.request_metadata import parse_request_metadata

OURS = "/v1/projects/p/models/m:predict"
# What else clients send that predict with JSON: httpx, curl -d, browsers, urllib, Java's HttpURLConnection.
ORDINARY: tuple[dict[bytes, bytes], ...] = (
    {},
    {CONTENT_TYPE: b"application/json", ACCEPT: b"*/*"},
    {CONTENT_TYPE: b"application/x-www-form-urlencoded", ACCEPT: b"*/*"},
    {CONTENT_TYPE: b"application/json; charset=UTF-8", ACCEPT: b"application/json"},
    {ACCEPT: b"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"},
    {ACCEPT: b"text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"},
    {ACCEPT: b"application/*"},
    {ACCEPT: b""},
    {JSON_BYTES: b"nonsense"},
)


def path_of(text: str) -> PredictionPath:
    found = parse_prediction_path(text)
    assert found is not None
    return found


@pytest.mark.parametrize("told", ORDINARY)
def test_an_ordinary_request_crosses_as_nothing(told: dict[bytes, bytes]) -> None:
    """Not a byte is added to what it was always sent as, and it is told by identity."""
    call = parse_request_metadata(path_of(OURS), told, "v1")

    assert call is DEFAULT_METADATA
    assert encode_metadata(call) == b""
    assert decode_metadata(b"") is DEFAULT_METADATA


@pytest.mark.parametrize(
    ("told", "call"),
    [
        ({CONTENT_TYPE: b"application/x-npy"}, RequestMetadata(content_type=NPY)),
        ({CONTENT_TYPE: b"Application/X-NPY; v=1", ACCEPT: b"*/*"}, RequestMetadata(content_type=NPY)),
        (
            {CONTENT_TYPE: b"application/x-npy", ACCEPT: b"application/x-npy"},
            RequestMetadata(content_type=NPY, accept=NPY),
        ),
        ({ACCEPT: b"application/octet-stream"}, RequestMetadata(model="m", version="v1", accept=BINARY)),
        (
            {CONTENT_TYPE: b"application/octet-stream", JSON_BYTES: b"17"},
            RequestMetadata(content_type=BINARY, json_bytes=17),
        ),
    ],
)
def test_binary_bodies_are_told_of(told: dict[bytes, bytes], call: RequestMetadata) -> None:
    """Their types, and that of the answer where it is not JSON."""
    assert parse_request_metadata(path_of(OURS), told, "v1") == call


def test_other_protocols_are_told_what_their_clients_call_the_model() -> None:
    """And what they call the version."""
    told = {CONTENT_TYPE: b"application/json", ACCEPT: b"text/plain", JSON_BYTES: b"5"}

    assert parse_request_metadata(path_of("/v1/models/m/labels/l:classify"), told, "3") == RequestMetadata(
        Dialect.TENSORFLOW, "classify", "m", "3"
    )
    assert parse_request_metadata(path_of("/v2/models/m/infer"), told, "3") == RequestMetadata(
        Dialect.INFERENCE, "infer", "m", "3", json_bytes=5
    )


@pytest.mark.parametrize("length", [b"-1", b"", b"1.5", b"0x5", b"9" * 40, b"\xb2"])
def test_a_length_is_a_number(length: bytes) -> None:
    """Of bytes."""
    with pytest.raises(InvalidArgument, match="Inference-Header-Content-Length"):
        parse_request_metadata(path_of("/v2/models/m/infer"), {JSON_BYTES: length})


OFFERED = (JSON, NPY, BINARY)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", JSON),
        ("*/*", JSON),
        (NPY, NPY),
        (f"{NPY}, {JSON}", JSON),  # as much: what is offered first
        (f"{JSON};q=0.5, {NPY}", NPY),
        (f"{JSON};q=0.5, {NPY};Q=0.6;level=1", NPY),
        (f"*/*, {JSON};q=0", NPY),
        (f"application/*;q=0.1, {BINARY};q=0.2", BINARY),
        (f"APPLICATION/X-NPY,{JSON};q=0.9", NPY),
        (f"text/html, , {BINARY}", BINARY),
    ],
)
def test_the_client_says_what_it_wants(accept: str, chosen: str) -> None:
    """The weights count; what is said of a type itself counts before what is said of all."""
    assert negotiate_media_type(accept, OFFERED) == chosen


def test_who_wants_nothing_there_is_gets_nothing() -> None:
    """But is told what there is."""
    with pytest.raises(NotAcceptable, match="application/json, application/x-npy"):
        negotiate_media_type("text/html, application/json;q=0", OFFERED)
    with pytest.raises(InvalidArgument, match="q=2; q is a number from 0 to 1"):
        negotiate_media_type("application/json;q=2", OFFERED)
    with pytest.raises(InvalidArgument, match="q=much"):
        negotiate_media_type("application/json;q=much", OFFERED)


@given(st.text(max_size=60))
def test_any_text_is_a_wish(accept: str) -> None:
    """One that can be met, or one that is refused in words."""
    try:
        assert negotiate_media_type(accept, OFFERED) in OFFERED
    except ServingError as error:
        assert "Accept" in error.message


CALLS = st.builds(
    RequestMetadata,
    st.sampled_from(Dialect),
    st.sampled_from(["predict", "classify", "infer"]),
    st.text(max_size=20),
    st.text(max_size=20),
    json_bytes=st.none() | st.integers(0, 1 << 60),
)


@given(CALLS)
def test_calls_cross_the_channel(call: RequestMetadata) -> None:
    """The same bytes are the same object."""
    about = encode_metadata(call)

    assert decode_metadata(about) == call
    assert decode_metadata(bytes(bytearray(about))) is decode_metadata(about)


def test_a_call_has_its_bounds() -> None:
    """A name may be too long to be one."""
    with pytest.raises(InvalidArgument, match=f"less than {MAX_METADATA_BYTES} bytes"):
        encode_metadata(RequestMetadata(Dialect.TENSORFLOW, model="m" * MAX_METADATA_BYTES))
