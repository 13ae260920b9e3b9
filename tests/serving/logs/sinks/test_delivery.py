"""From a journal to a sink that may be slow, down, or picky."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from serving.errors import Unavailable
from serving.logs.journal import (
    BlockBuilder,
    JournalAppender,
    JournalCounts,
    JournalReader,
    JournalRecord,
    LogKind,
)
from serving.logs.sinks.delivery import JournalDelivery


@dataclass
class Shelf:
    """A sink that does as the test says."""

    collect_bytes: int = 1 << 20
    collect_seconds: float = 0.0
    failures: list[Exception] = field(default_factory=list)
    refuses: int = 0
    keys: list[str] = field(default_factory=list)
    writes: list[list[bytes]] = field(default_factory=list)

    def write(self, records: Sequence[JournalRecord], key: str) -> int:
        self.keys.append(key)
        if self.failures:
            raise self.failures.pop()
        self.writes.append([record.data for record in records])
        return self.refuses


class World:
    """A journal with its delivery, and a clock."""

    def __init__(self, folder: Path, sink: Shelf) -> None:
        self.now = 0.0
        self.folder = folder
        self.sink = sink
        self.journal = JournalAppender(folder, LogKind.REQUESTS, "somewhere", 1 << 30)
        self.journal.open()
        self.delivery = self.another()

    def another(self) -> JournalDelivery:
        """As the next log writer would begin."""
        return JournalDelivery(JournalReader(self.folder), lambda: self.sink, clock=lambda: self.now)

    def put(self, *bodies: bytes) -> None:
        batch = BlockBuilder()
        for body in bodies:
            batch.add_record(0.0, b"projects/p/models/m/versions/v", b"", body, b"")
        self.journal.append(batch)

    def drain(self) -> None:
        while self.delivery.deliver_next() == 0:
            pass


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, Shelf())


def test_what_is_there_is_delivered(world: World) -> None:
    """In order, once, and counted."""
    world.put(b"1", b"2")
    world.put(b"3")
    world.drain()
    world.drain()

    assert [body for bodies in world.sink.writes for body in bodies] == [b"1", b"2", b"3"]
    assert world.journal.checkpoint() == JournalCounts(sampled=3, sent=3)


def test_a_sink_that_fails_is_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Ever more seldom, for ever, with the same records; it is said once, and once that it is over."""
    caplog.set_level("INFO")
    world.sink.failures = [Unavailable("no"), OSError("no"), ValueError("a library's")] * 10
    world.put(b"1")
    pauses = [world.delivery.deliver_next() for _ in range(30)]
    assert 0.4 <= pauses[0] <= 0.6
    assert all(24 <= pause <= 36 for pause in pauses[7:])
    assert sorted(round(pause) for pause in pauses[:5]) == [round(pause) for pause in pauses[:5]]
    assert world.journal.checkpoint() == JournalCounts(sampled=1, waiting=1)

    world.drain()
    assert world.sink.writes == [[b"1"]]
    assert world.journal.checkpoint() == JournalCounts(sampled=1, sent=1)
    assert len(caplog.messages) == 2


def test_a_sink_that_cannot_be_made_is_made_later(world: World) -> None:
    """As when its credentials are fetched from somewhere that is down."""
    makes: list[int] = []

    def make() -> Shelf:
        makes.append(1)
        if len(makes) < 3:
            raise Unavailable("no")
        return world.sink

    world.delivery = JournalDelivery(JournalReader(world.folder), make)
    world.put(b"1")

    assert world.delivery.deliver_next() > 0
    assert world.delivery.deliver_next() > 0
    assert world.delivery.deliver_next() == 0
    assert len(world.sink.writes) == 1


def test_what_is_refused_is_counted(world: World) -> None:
    """It does not come again."""
    world.sink.refuses = 2
    world.put(b"1", b"2", b"3")
    world.drain()

    assert len(world.sink.writes) == 1
    assert world.journal.checkpoint() == JournalCounts(sampled=3, sent=1, dropped=2)


def test_some_sinks_collect(world: World) -> None:
    """Until there is enough or the first has waited long enough, or the server ends."""
    world.sink.collect_seconds, world.sink.collect_bytes = 10.0, 5000
    world.drain()
    world.put(b"1")
    world.drain()
    world.now = 9.0
    world.put(b"2")
    world.drain()
    assert world.sink.writes == []
    world.now = 10.0
    world.drain()
    assert world.sink.writes == [[b"1", b"2"]]

    world.put(b"3" * 5000)
    world.drain()
    world.put(b"4")
    world.drain()
    assert len(world.sink.writes) == 2
    assert world.delivery.deliver_next(closing=True) == 0
    assert len(world.sink.writes) == 3


def test_what_is_collected_is_written_in_parts_that_fit_into_memory(world: World) -> None:
    """All of it once it is due, however many small records; what comes later is collected anew."""
    world.sink.collect_seconds = 10.0
    bodies = [b"%d" % number for number in range(10_000)]
    for start in range(0, len(bodies), 100):
        world.put(*bodies[start : start + 100])
    world.drain()
    assert world.sink.writes == []
    world.now = 10.0
    world.drain()
    assert [body for written in world.sink.writes for body in written] == bodies
    assert max(map(len, world.sink.writes)) <= 4200

    world.put(b"late")
    world.drain()
    assert world.sink.writes[-1][-1] == bodies[-1]
    world.now = 20.0
    world.drain()
    assert world.sink.writes[-1] == [b"late"]


def test_the_same_records_have_the_same_key(world: World) -> None:
    """Also for the next log writer, which begins where the last one had come to; others have another."""
    world.put(b"0")
    world.drain()
    world.sink.failures = [Unavailable("no")]
    world.put(b"1")
    world.delivery.deliver_next()
    world.delivery = world.another()
    world.drain()
    world.put(b"2")
    world.drain()
    zero, one, again, two = world.sink.keys

    assert one == again
    assert len({zero, one, two}) == 3
