"""Logs in Cloud Storage."""

from __future__ import annotations

import json

import pytest

from serving.artifacts.storage import FileStore
from serving.logs.journal import LogKind
from serving.logs.sinks.bucket_sink import BucketSink
from tests.emulator import Emulator
from tests.serving.logs.sinks.records import DAY, NOON, record

pytestmark = pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")


class Sinks:
    """A sink, and what is in its bucket."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.uri = f"gs://{emulator.bucket()}/logs"
        self.sink = BucketSink(
            self.uri, LogKind.REQUESTS, FileStore(retry_seconds=10), rotate_bytes=1 << 20, rotate_seconds=60
        )

    def write(self, *numbers: int, key: str = "key") -> None:
        assert self.sink.write([record(number, time=NOON) for number in numbers], key) == 0

    def objects(self) -> dict[str, list[str]]:
        """What each object has, by the end of its name."""
        stem = f"{self.uri}/{DAY}/120000-"
        return {
            item.uri.removeprefix(stem): [
                json.loads(line)["raw_data"] for line in self.emulator.get(item.uri).splitlines()
            ]
            for item in FileStore().list(self.uri)
        }


@pytest.fixture
def sinks(emulator: Emulator) -> Sinks:
    return Sinks(emulator)


def test_an_object_has_what_came_together(sinks: Sinks) -> None:
    """Under the name of its records."""
    sinks.write(1, 2, key="a")
    sinks.write(3, key="b")

    assert sinks.objects() == {"a.jsonl": ["1", "2"], "b.jsonl": ["3"]}


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ((1, 2), {"key.jsonl": ["1", "2"]}),
        ((1, 2, 3), {"key.jsonl": ["1", "2"], "key-2.jsonl": ["3"]}),
        ((1,), {"key.jsonl": ["1", "2"]}),
    ],
)
def test_what_comes_again_is_there(
    sinks: Sinks, again: tuple[int, ...], expected: dict[str, list[str]]
) -> None:
    """After a kill between the upload and the note of it; perhaps with more behind it, or with less."""
    sinks.write(1, 2)
    sinks.write(*again)
    sinks.write(*again)

    assert sinks.objects() == expected


@pytest.mark.parametrize("theirs", [b"precious", b""])
def test_nobody_elses_object_is_replaced(sinks: Sinks, theirs: bytes) -> None:
    """Ours has another name then."""
    taken = f"{sinks.uri}/{DAY}/120000-key.jsonl"
    sinks.emulator.put(taken, theirs)
    sinks.write(1, 2)

    assert sinks.emulator.get(taken) == theirs
    sinks.emulator.put(taken, b"")
    assert sinks.objects() == {"key.jsonl": [], "key-2.jsonl": ["1", "2"]}
