from __future__ import annotations

import numpy as np
import pytest

from serving.model_schema import (
    DEFAULT_SIGNATURE,
    ModelSchema,
    ModelSignature,
    TensorSpec,
    pack_schema,
    unpack_outline,
    unpack_schema,
)

SCHEMA = ModelSchema(
    "sklearn",
    {
        DEFAULT_SIGNATURE: ModelSignature(
            (TensorSpec("a", "FP64", (-1,)),), (TensorSpec("b", "BYTES", None, classes=("x", 1)),)
        )
    },
    example={"a": 1.5},
    answer="x",
)


def test_a_schema_is_kept_as_a_short_text() -> None:
    """It is unpacked once, for tens of thousands of versions may be asked about."""
    text = pack_schema(SCHEMA)

    assert len(text) < 300
    assert unpack_schema(text) == SCHEMA
    assert unpack_outline(text) == SCHEMA
    assert unpack_outline(text) is unpack_outline(pack_schema(SCHEMA))


def test_what_is_too_long_to_be_kept_is_left_out() -> None:
    """First the answer, then the example too."""
    noise = np.random.default_rng(0).random(20_000).tolist()

    answer = unpack_schema(
        pack_schema(ModelSchema("sklearn", SCHEMA.signatures, example=[0.0] * 200_000, answer=noise))
    )
    assert (len(answer.example), answer.answer) == (200_000, None)

    both = unpack_schema(pack_schema(ModelSchema("sklearn", SCHEMA.signatures, example=noise, answer=1)))
    assert both == ModelSchema("sklearn", SCHEMA.signatures)


def test_a_long_example_is_told_to_those_who_ask_for_it() -> None:
    """It takes much more memory than its text."""
    text = pack_schema(ModelSchema("sklearn", SCHEMA.signatures, example=[0.0] * 150_000, answer=1))

    assert len(text) < 2000
    assert unpack_outline(text) == ModelSchema("sklearn", SCHEMA.signatures)
    assert (len(unpack_schema(text).example), unpack_schema(text).answer) == (150_000, 1)


@pytest.mark.parametrize("text", ["", "!", "aGVsbG8="])
def test_another_text_is_no_schema(text: str) -> None:
    with pytest.raises(ValueError, match="Not a packed schema"):
        unpack_schema(text)
    with pytest.raises(ValueError, match="Not a packed schema"):
        unpack_outline(text)
