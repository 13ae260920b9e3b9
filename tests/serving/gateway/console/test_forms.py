"""Forms as browsers send them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from serving.errors import InvalidArgument
from serving.gateway.console.forms import Form, read_form


def read(body: bytes, content_type: str = "application/x-www-form-urlencoded; charset=utf-8") -> Form:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "headers": [(b"content-type", content_type.encode())]}
    return asyncio.run(read_form(Request(scope, receive)))


def test_fields_are_text_and_may_be_given_twice() -> None:
    form = read(b"a=+x+&b=1&b=2&c=&text=one%0D%0Atwo+")
    assert (form["a"], form["b"], form["c"], form["d"]) == ("x", "2", "", "")
    assert form.get_list("b") == ["1", "2"]
    assert form.get_raw("text") == "one\ntwo "
    assert (form.is_checked("a"), form.is_checked("c")) == (True, False)


@pytest.mark.parametrize("body", [b"a=%ff", b"&".join(b"a=1" for _ in range(1001))])
def test_what_is_no_form_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        read(body)


def test_other_types_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="x-www-form-urlencoded"):
        read(b"a=1", "multipart/form-data; boundary=x")
