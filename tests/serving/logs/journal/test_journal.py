"""Journals: what is put in comes out, whoever dies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving.logs.journal import (
    BlockBuilder,
    JournalAppender,
    JournalCounts,
    JournalReader,
    JournalRecord,
    LogKind,
    ReadPosition,
    RecordChunk,
)
from serving.logs.journal.file_format import list_segments, read_metadata, write_metadata

NAME = b"projects/p/models/m/versions/v"
NOON = 1_900_000_000.0
AMPLE = 1 << 30


def appender(folder: Path, *, limit: int = AMPLE) -> JournalAppender:
    return JournalAppender(folder, LogKind.REQUESTS, "gs://bucket/logs", limit)


def batch(*bodies: bytes, start: float = NOON) -> BlockBuilder:
    made = BlockBuilder()
    for body in bodies:
        made.add_record(start, NAME, b"id", body, b"answer " + body)
    return made


def bodies(chunk: RecordChunk | None) -> list[bytes]:
    return [] if chunk is None else [record.data for record in chunk.records]


def read_all(reader: JournalReader) -> list[JournalRecord]:
    found: list[JournalRecord] = []
    while (chunk := reader.read(AMPLE)) is not None:
        found += chunk.records
        reader.commit(chunk)
    return found


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    """Record by record, in order, with all its parts; then nothing more."""
    journal = appender(tmp_path)
    journal.append(batch(b"1", b""))
    journal.append(batch(b"3" * 100_000))
    journal.checkpoint()
    reader = JournalReader(tmp_path)
    chunk = reader.read(AMPLE)

    assert (reader.kind, reader.address) == (LogKind.REQUESTS, "gs://bucket/logs")
    assert bodies(chunk) == [b"1", b"", b"3" * 100_000]
    assert chunk is not None
    first = chunk.records[0]
    assert (first.name, first.request_id, first.time) == (NAME.decode(), "id", NOON)
    assert first.answer == b"answer 1"
    reader.commit(chunk)
    assert reader.read(AMPLE) is None


def test_records_have_ids_of_their_own(tmp_path: Path) -> None:
    """The same whenever they are read, no two alike in a journal or in two, in the order of time."""
    found: list[str] = []
    for name in ("one", "other"):
        journal = appender(tmp_path / name)
        for second in range(50):
            journal.append(batch(b"x", b"x", start=NOON + second))
        journal.checkpoint()
        chunks = [JournalReader(tmp_path / name).read(AMPLE) for _ in range(2)]
        ids = [[record.id for record in chunk.records] for chunk in chunks if chunk]
        assert ids[0] == ids[1] == sorted(ids[0])
        found += ids[0]

    assert len(set(found)) == 200
    assert {len(one) for one in found} == {32}


def test_a_chunk_is_about_as_large_as_asked(tmp_path: Path) -> None:
    """Whole blocks, however large a single one is."""
    journal = appender(tmp_path)
    for number in range(10):
        journal.append(batch(b"%d" % number * 1000))
    journal.checkpoint()
    reader = JournalReader(tmp_path)
    sizes = []
    while (chunk := reader.read(2500)) is not None:
        sizes.append(len(chunk.records))
        reader.commit(chunk)

    assert sum(sizes) == 10
    assert max(sizes) == 2


def test_what_is_not_committed_comes_again(tmp_path: Path) -> None:
    """For the next reader, from where the last one had noted it to be."""
    journal = appender(tmp_path)
    journal.append(batch(b"1"))
    journal.append(batch(b"2"))
    journal.checkpoint()
    reader = JournalReader(tmp_path)
    chunk = reader.read(1)
    assert chunk is not None
    reader.commit(chunk)
    assert bodies(reader.read(AMPLE)) == [b"2"]

    assert bodies(JournalReader(tmp_path).read(AMPLE)) == [b"2"]


def test_half_a_block_is_none(tmp_path: Path) -> None:
    """Neither while it is being written, nor once the server has died over it: the next goes on behind."""
    journal = appender(tmp_path)
    journal.append(batch(b"1"))
    journal.append(batch(b"2"))
    (segment,) = tmp_path.glob("*.segment")
    os.truncate(segment, segment.stat().st_size - 1)
    assert bodies(JournalReader(tmp_path).read(AMPLE)) == [b"1"]

    after = appender(tmp_path)
    after.append(batch(b"3"))
    assert [record.data for record in read_all(JournalReader(tmp_path))] == [b"1", b"3"]


def test_counts_go_on(tmp_path: Path) -> None:
    """Over a restart, also after a kill between a block and its note."""
    journal = appender(tmp_path)
    journal.append(batch(b"1", b"2", b"3"))
    journal.count_dropped(4)
    assert journal.checkpoint() == JournalCounts(sampled=7, sent=0, waiting=3, dropped=4)
    journal.append(batch(b"4"))  # not settled: killed

    again = appender(tmp_path)
    assert again.checkpoint() == JournalCounts(sampled=8, sent=0, waiting=4, dropped=4)
    reader = JournalReader(tmp_path)
    chunk = reader.read(AMPLE)
    assert chunk is not None
    reader.commit(chunk, dropped=1)
    assert again.checkpoint() == JournalCounts(sampled=8, sent=3, waiting=0, dropped=5)
    again.close()
    assert appender(tmp_path).checkpoint() == JournalCounts(sampled=8, sent=3, waiting=0, dropped=5)


def test_numbers_are_never_used_twice(tmp_path: Path) -> None:
    """Not even where all that was read has been removed."""
    ids = set()
    for _ in range(3):
        journal = appender(tmp_path)
        journal.append(batch(b"x"))
        journal.checkpoint()
        ids |= {record.id for record in read_all(JournalReader(tmp_path))}
        journal.close()
        assert list_segments(tmp_path) == {}

    assert len(ids) == 3


def test_past_its_limit_it_drops(tmp_path: Path) -> None:
    """The new ones; and takes more again once some were read. The disk it takes is bounded."""
    journal = appender(tmp_path, limit=100_000)
    for _ in range(100):
        journal.append(batch(b"x" * 4000))
    full = journal.checkpoint()
    assert full.sampled == 100
    assert 5 < full.waiting < 25
    assert full.dropped == 100 - full.waiting
    assert sum(list_segments(tmp_path).values()) <= 100_000

    assert len(read_all(JournalReader(tmp_path))) == full.waiting
    journal.append(batch(b"x" * 4000))
    after = journal.checkpoint()
    assert (after.waiting, after.dropped) == (1, full.dropped)
    assert len(list_segments(tmp_path)) <= 2


def test_it_stays_small_while_it_is_read(tmp_path: Path) -> None:
    """Segments that were read are removed, the last one is left behind before it is large."""
    journal = appender(tmp_path)
    reader = None
    for _ in range(40):
        journal.append(batch(b"x" * 100_000))
        journal.checkpoint()
        reader = reader or JournalReader(tmp_path)
        assert len(read_all(reader)) == 1
        assert sum(list_segments(tmp_path).values()) < 1_000_000

    assert journal.checkpoint() == JournalCounts(sampled=40, sent=40)


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """A block that does not fit is not there at all, and can be written later."""
    import resource

    journal = appender(tmp_path)
    journal.append(batch(b"1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            journal.append(batch(b"2" * 200_000))
        assert journal.checkpoint().sampled == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.append(batch(b"3"))

    assert [record.data for record in read_all(JournalReader(tmp_path))] == [b"1", b"3"]
    assert journal.checkpoint() == JournalCounts(sampled=2, sent=2)


def test_damage_is_counted(tmp_path: Path) -> None:
    """A block that the disk has spoilt costs the rest of its segment, and is told."""
    journal = appender(tmp_path, limit=12_000)  # a block in each segment
    for number in range(3):
        journal.append(batch(b"%d" % number * 1500))
    journal.checkpoint()
    second = sorted(tmp_path.glob("*.segment"))[1]
    content = bytearray(second.read_bytes())
    content[100] ^= 1
    second.write_bytes(content)
    reader = JournalReader(tmp_path)
    assert len(read_all(reader)) == 2

    assert reader.position.sent == 2
    assert journal.checkpoint() == JournalCounts(sampled=3, sent=2, waiting=0, dropped=1)


def test_found_again(tmp_path: Path) -> None:
    """A server finds the journals of the one before it, whatever they are for."""
    for kind, address in [(LogKind.ACCESS, ""), (LogKind.REQUESTS, "p.d.t")]:
        JournalAppender(tmp_path / f"{kind}", kind, address, AMPLE).checkpoint()
    (tmp_path / "lock").touch()
    (tmp_path / "empty").mkdir()

    found = {(one.kind, one.address) for one in JournalAppender.find_existing(tmp_path, AMPLE)}
    assert found == {(LogKind.ACCESS, ""), (LogKind.REQUESTS, "p.d.t")}
    assert list(JournalAppender.find_existing(tmp_path / "missing", AMPLE)) == []


def test_a_damaged_card_is_none(tmp_path: Path) -> None:
    """Better counts that begin anew than wrong ones."""
    write_metadata(tmp_path / "card", {"a": 1})
    assert read_metadata(tmp_path / "card") == {"a": 1}
    write_metadata(tmp_path / "card", {"a": 22})
    assert read_metadata(tmp_path / "card") == {"a": 22}
    (tmp_path / "card").write_bytes(b'{"a": 3}\n00000000')

    assert read_metadata(tmp_path / "card") is None
    assert read_metadata(tmp_path / "missing") is None
    assert ReadPosition.load(tmp_path) == ReadPosition()
