"""What readers of the event stream get, and when they are ended."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import orjson
import pytest

from serving.errors import LimitReached, Unavailable
from serving.gateway.observability.event_stream import (
    EventKind,
    EventReader,
    EventStream,
    Occurrence,
    ReadingEndedError,
)
from tests.bounds import HANG_SECONDS

START = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def run(main: Callable[[EventStream, Clock], Awaitable[None]], *, kept: int = 5) -> None:
    async def bounded() -> None:
        clock = Clock()
        async with asyncio.timeout(HANG_SECONDS):
            await main(EventStream(2, clock=clock, kept=kept), clock)

    asyncio.run(bounded())


def publish(stream: EventStream, *numbers: int) -> None:
    for number in numbers:
        stream.publish(Occurrence(EventKind.JOB, f"projects/p/jobs/j{number}", {"job": number}))


async def read(reader: EventReader) -> list[int]:
    return [orjson.loads(event.data)["job"] for event in await reader.read(0.0)]


def test_a_reader_gets_what_comes_after_it_has_begun() -> None:
    """Once each, in order; nothing where nothing happens in its time."""

    async def main(stream: EventStream, clock: Clock) -> None:
        publish(stream, 1)
        with stream.open_reader(None) as reader:
            assert await read(reader) == []
            publish(stream, 2, 3)
            assert await read(reader) == [2, 3]
            assert await read(reader) == []
            publish(stream, 4)
            assert await read(reader) == [4]
            assert not reader.has_gap

    run(main)


def test_a_reader_waits_for_the_next_event() -> None:
    async def main(stream: EventStream, clock: Clock) -> None:
        with stream.open_reader(None) as reader:
            reading = asyncio.create_task(reader.read(HANG_SECONDS))
            await asyncio.sleep(0)
            publish(stream, 1)
            assert len(await reading) == 1

    run(main)


def test_ids_are_times_and_go_on_when_the_clock_does_not() -> None:
    async def main(stream: EventStream, clock: Clock) -> None:
        with stream.open_reader(None) as reader:
            publish(stream, 1)
            clock.now -= 3600
            publish(stream, 2)
            first, second = await reader.read(0.0)
            assert START * 1e6 <= first.id < second.id < START * 1e6 + 10
            assert orjson.loads(first.data)["time"].startswith("2027-01-15T08:00:00.0000")

    run(main)


def test_a_reader_that_comes_back_gets_what_it_missed() -> None:
    """From any id that it has seen, as long as what follows is kept."""

    async def main(stream: EventStream, clock: Clock) -> None:
        publish(stream, 1)
        with stream.open_reader(None) as reader:
            begun = reader.position
            publish(stream, 2, 3, 4)
            _, event, _ = await reader.read(0.0)
        for after, expected in ((begun, [2, 3, 4]), (event.id, [4])):
            with stream.open_reader(after) as reader:
                assert not reader.has_gap
                assert await read(reader) == expected
        publish(stream, 5, 6, 7, 8)
        for after in (begun, 1, event.id + 10**15):
            with stream.open_reader(after) as reader:
                assert reader.has_gap
                assert await read(reader) == [4, 5, 6, 7, 8]

    run(main)


def test_many_events_are_read_in_parts() -> None:
    async def main(stream: EventStream, clock: Clock) -> None:
        with stream.open_reader(None) as reader:
            publish(stream, *range(150))
            parts = [await read(reader) for _ in range(4)]
            assert [len(part) for part in parts] == [64, 64, 22, 0]
            assert [number for part in parts for number in part] == list(range(150))

    run(main, kept=200)


def test_a_reader_that_is_too_slow_ends_and_holds_no_place() -> None:
    async def main(stream: EventStream, clock: Clock) -> None:
        with stream.open_reader(None) as slow, stream.open_reader(None) as quick:
            for number in range(6):
                publish(stream, number)
                assert await read(quick) == [number]
            stream.check_room()
            with pytest.raises(ReadingEndedError, match="too slow") as ended:
                await slow.read(0.0)
            assert ended.value.reason == "slow"

    run(main)


def test_there_are_so_many_places_and_none_once_the_server_stops() -> None:
    async def main(stream: EventStream, clock: Clock) -> None:
        with stream.open_reader(None) as reader:
            with stream.open_reader(None), pytest.raises(LimitReached, match="event_readers"):
                stream.check_room()
            stream.check_room()
            publish(stream, 1)
            stream.close()
            with pytest.raises(ReadingEndedError, match="stopping"):
                await reader.read(HANG_SECONDS)
            with pytest.raises(Unavailable, match="stopping"):
                stream.check_room()

    run(main)


def test_an_event_is_of_its_resource_and_of_those_above() -> None:
    async def main(stream: EventStream, clock: Clock) -> None:
        version, operation = "projects/p/models/m/versions/v", "projects/p/operations/create_m_v-1"
        with stream.open_reader(None) as reader:
            stream.publish(Occurrence(EventKind.OPERATION, operation, {}, version))
            [event] = await reader.read(0.0)
        for parent in ("", "projects/p", "projects/p/models/m", version, operation):
            assert event.concerns(parent)
        for parent in (f"{version}1", "projects/p2", version[:-1]):
            assert not event.concerns(parent)

    run(main)


def test_events_take_the_memory_of_their_text() -> None:
    async def main(stream: EventStream, clock: Clock) -> None:
        tracemalloc.start()
        try:
            publish(stream, *range(1000))
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken < 1_000_000

    run(main, kept=1000)
