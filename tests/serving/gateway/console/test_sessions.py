"""Sessions end by themselves, and are bounded."""

from __future__ import annotations

from serving.gateway.console.sessions import (
    SessionStore,
    derive_anti_forgery_token,
    is_anti_forgery_token,
    is_visitor,
    new_visitor,
)


def test_a_session_ends_when_its_time_is_over_or_it_is_closed() -> None:
    now = 0.0
    store = SessionStore(lambda: now, seconds=10)
    first, second = store.open("a"), store.open("b")
    store.close(second)
    assert store.find(second) is None
    now = 9.9
    session = store.find(first)
    assert session is not None
    assert session.token == "a"
    now = 10.0
    assert store.find(first) is None
    assert store.find("unknown") is None


def test_the_oldest_session_ends_when_there_are_too_many() -> None:
    store = SessionStore(most=2)
    visitors = [store.open(str(number)) for number in range(3)]
    assert [store.find(visitor) is not None for visitor in visitors] == [False, True, True]


def test_the_anti_forgery_token_belongs_to_one_visitor() -> None:
    visitor, other = new_visitor(), new_visitor()
    assert is_visitor(visitor)
    assert not is_visitor("short")
    assert is_anti_forgery_token(visitor, derive_anti_forgery_token(visitor))
    assert not is_anti_forgery_token(visitor, derive_anti_forgery_token(other))
