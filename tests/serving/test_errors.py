from __future__ import annotations

from serving.errors import InvalidArgument, ModelFailed, describe_exception


class Mute(Exception):
    """Cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


def test_a_message_can_be_sent_and_kept() -> None:
    """Code of users may say what UTF-8 cannot carry, and more than anybody reads."""
    long = ModelFailed("x" * 20_000_000).message

    assert InvalidArgument("bad \ud800 name").message == "bad ? name"
    assert len(InvalidArgument("x" * 20_000_000).message) < 10_100
    assert len(long) < 10_000
    assert long.endswith("more characters) (Error code: 2)")


def test_what_is_raised_has_a_name_at_least() -> None:
    """Its text may be code that fails."""
    assert describe_exception(ValueError("no number")) == "ValueError: no number"
    assert describe_exception(GeneratorExit()) == "GeneratorExit"
    assert describe_exception(Mute()) == "Mute"
