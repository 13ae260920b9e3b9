"""The ids of requests."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from serving.gateway.request_context import ensure_request_id, read_trace_id, with_request_id_header

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def scope(**headers: str) -> dict[str, Any]:
    return {
        "type": "http",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }


@pytest.mark.parametrize("given", ["a", "A-b_c.9", "x" * 128])
def test_the_clients_own_id_is_kept(given: str) -> None:
    """A well-formed X-Request-Id, also beside a trace."""
    assert ensure_request_id(scope(traceparent=PARENT, x_request_id=given)) == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"', "a\nb", "ü"])
def test_another_is_not(given: str) -> None:
    """Nothing that could break a log line or a header gets in."""
    assert re.fullmatch("[0-9a-f]{32}", ensure_request_id(scope(x_request_id=given)))


def test_a_trace_is_an_id() -> None:
    """Without an id of its own a request has that of its trace."""
    assert ensure_request_id(scope(traceparent=PARENT)) == TRACE
    assert read_trace_id(scope(traceparent=PARENT, x_request_id="mine")) == TRACE


@pytest.mark.parametrize(
    "given",
    [
        "",
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{TRACE.upper()}-00f067aa0ba902b7-01",
        f"00-{TRACE}",
    ],
)
def test_a_malformed_trace_is_none(given: str) -> None:
    """As the W3C has it, it is ignored."""
    assert read_trace_id(scope(traceparent=given)) == ""
    assert ensure_request_id(scope(traceparent=given)) != TRACE


def test_it_stays_the_same() -> None:
    """However often it is asked for; the next request has another."""
    one, other = scope(), scope()

    assert ensure_request_id(one) == ensure_request_id(one) != ensure_request_id(other)


def test_an_answer_tells_it() -> None:
    """As a header, beside the others."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        asked = scope(x_request_id="mine")
        await with_request_id_header(asked, send)(
            {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
        )
        await with_request_id_header(asked, send)({"type": "http.response.body", "body": b""})

    asyncio.run(main())

    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", b"mine")]
    assert sent[1] == {"type": "http.response.body", "body": b""}
