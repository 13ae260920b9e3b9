"""Which servers versions are placed on."""

from __future__ import annotations

from typing import Any

from serving.gateway.control.placement.server_placement import select_placed
from serving.gateway.state.shared.membership import ServerRecord


def record(name: str, **more: Any) -> ServerRecord:
    return ServerRecord(
        id=name, name=name, host="10.0.0.7", port=8090, machine="m", folder="/state", memory_bytes=1,
        processors=1, weight=16, **more,
    )  # fmt: skip


def select(*records: ServerRecord) -> list[str]:
    return [one.id for one in select_placed(records)]


def test_in_the_order_of_their_ids() -> None:
    assert select(record("b"), record("a")) == ["a", "b"]


def test_nothing_is_placed_on_a_server_that_starts_while_another_is_ready() -> None:
    """Requests would wait there until its pilots are ready."""
    assert select(record("a", starting=True), record("b")) == ["b"]
    assert select(record("a", starting=True), record("b", draining=True)) == ["a"]


def test_if_all_start_it_is_placed_as_if_they_were_ready() -> None:
    assert select(record("a", starting=True), record("b", starting=True)) == ["a", "b"]


def test_nothing_is_placed_on_a_server_that_drains() -> None:
    assert select(record("a", draining=True), record("b", draining=True)) == []
