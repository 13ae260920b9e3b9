from __future__ import annotations

import pytest

from serving.errors import InvalidInputs
from serving.node.codecs import Codec, CodecCache, ServedModel
from serving.protocols import Dialect, RequestMetadata
from tests.serving.node.codecs import models


def test_requests_that_say_the_same_have_one_reader() -> None:
    """However many different ones come, no more than some are kept."""
    known = CodecCache(models.booster())

    assert known.get_or_create(RequestMetadata(Dialect.TENSORFLOW)) is known.get_or_create(
        RequestMetadata(Dialect.TENSORFLOW)
    )
    first = known.get_or_create(RequestMetadata(Dialect.TENSORFLOW))
    for number in range(300):
        known.get_or_create(RequestMetadata(Dialect.TENSORFLOW, model=str(number)))
    assert known.get_or_create(RequestMetadata(Dialect.TENSORFLOW)) is not first


def test_a_call_that_cannot_be_is_refused_in_its_protocols_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it is made."""

    def create_codec(call: RequestMetadata, model: ServedModel) -> Codec:
        raise InvalidInputs("No such verb.")

    monkeypatch.setattr("serving.node.codecs.tensorflow_rest.create_codec", create_codec)
    made = CodecCache(models.booster()).get_or_create(RequestMetadata(Dialect.TENSORFLOW))

    with pytest.raises(InvalidInputs) as raised:
        made.decode_request(b"")
    assert made.encode_error(raised.value)[:2] == (400, b'{"error":"No such verb."}')
