from __future__ import annotations

import orjson
import pytest

from serving.errors import InvalidInputs, ModelFailed, NotFound, ResourceExhausted, Unauthenticated
from serving.protocols import Dialect
from serving.protocols.errors import render_error

REST = (Dialect.TENSORFLOW, Dialect.INFERENCE)
GRPC = (Dialect.TENSORFLOW_GRPC, Dialect.INFERENCE_GRPC)


def test_ai_platform_has_googles_form() -> None:
    """With the model's categories."""
    status, body, headers = render_error(InvalidInputs("A row is short."))

    assert (status, headers) == (400, ())
    assert orjson.loads(body)["error"] == {
        "code": 400,
        "message": "Invalid inputs: A row is short. (Error code: 1)",
        "status": "INVALID_ARGUMENT",
    }


@pytest.mark.parametrize("dialect", REST)
def test_the_others_have_a_text(dialect: Dialect) -> None:
    """Without those categories; statuses and headers are those of AI Platform, the type without a charset."""
    json = (b"content-type", b"application/json")

    assert render_error(InvalidInputs("A row is short."), dialect) == (
        400,
        b'{"error":"A row is short."}',
        (json,),
    )
    assert render_error(NotFound("Where?"), dialect) == (404, b'{"error":"Where?"}', (json,))
    assert render_error(ResourceExhausted("Later.", retry_after=1.2), dialect).headers == (
        json,
        (b"retry-after", b"2"),
    )
    assert render_error(Unauthenticated("Who?"), dialect).headers[1][0] == b"www-authenticate"


@pytest.mark.parametrize("dialect", GRPC)
def test_over_grpc_there_is_a_code(dialect: Dialect) -> None:
    """And the bare text."""
    status, body, headers = render_error(ResourceExhausted("Später.", retry_after=1), dialect)

    assert (status, body.decode()) == (429, "Später.")
    assert headers == ((b"grpc-status", b"8"), (b"retry-after", b"1"))
    assert render_error(InvalidInputs("\ud800"), dialect).body == b"?"


@pytest.mark.parametrize("dialect", Dialect)
def test_what_no_text_can_carry_is_told_all_the_same(dialect: Dialect) -> None:
    """The code of a model may raise with half a letter in its words."""
    body = render_error(ModelFailed("Größe \ud800"), dialect).body

    assert "Größe ?" in body.decode()


def test_every_dialect_has_its_errors() -> None:
    """None is forgotten."""
    for dialect in Dialect:
        assert render_error(NotFound("x"), dialect).status == 404
