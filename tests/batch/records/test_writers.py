"""Encoded blocks to files, and files of bundles to one per shard."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from batch.records import writers
from batch.records.blocks import EncodedBlock, RejectedRecord, ShardPiece
from batch.records.writers import PieceWriter, SealedShard, read_sealed_shards, seal_shard, sum_shards
from serving.artifacts.storage import FileStore
from serving.errors import Internal, InvalidOutputs, NotFound


def encoded(
    index: int,
    results: bytes = b"",
    *bad: RejectedRecord,
    last: bool = False,
    header: tuple[str, ...] = (),
    shard: int = 2,
) -> EncodedBlock:
    count = results.count(b"\n")
    return EncodedBlock(shard, index, "/in/a", results, count, 0, 0.0, last=last, rejected=bad, header=header)


def end(index: int) -> EncodedBlock:
    return encoded(index, last=True)


def written(folder: Path, *blocks: EncodedBlock) -> ShardPiece:
    """What a bundle with these blocks leaves."""
    writer = PieceWriter(FileStore(), str(folder), blocks[0].shard, blocks[0].index)
    for block in blocks:
        writer.add(block)
    return writer.close()


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# ---- pieces


def test_a_piece_is_what_its_blocks_held(tmp_path: Path) -> None:
    """Lines in the order of the blocks, errors beside them, and the counts of both."""
    bad = RejectedRecord(7, 'No "x".\n', "{\ufffd\n")
    piece = written(
        tmp_path,
        encoded(3, b"1\n2\n"),
        encoded(4, b"", bad),
        encoded(5, b"3\n", bad, RejectedRecord(9, "Other", "")),
        end(6),
    )

    assert Path(piece.results).read_bytes() == b"1\n2\n3\n"
    assert [json.loads(line) for line in Path(piece.errors).read_text().splitlines()] == [
        {"file": "/in/a", "offset": 7, "reason": 'No "x".\n', "snippet": "{\ufffd\n"},
        {"file": "/in/a", "offset": 7, "reason": 'No "x".\n', "snippet": "{\ufffd\n"},
        {"file": "/in/a", "offset": 9, "reason": "Other", "snippet": ""},
    ]
    assert (piece.shard, piece.first, piece.blocks, piece.end, piece.predictions) == (2, 3, 4, 6, 3)
    assert piece.stats == {'No "x".\n': 2, "Other": 1}


def test_no_errors_are_no_file(tmp_path: Path) -> None:
    """Where nothing is wrong there are only results, an empty file at least."""
    piece = written(tmp_path, end(0))

    assert piece.errors == ""
    assert Path(piece.results).read_bytes() == b""
    assert len(files_in(tmp_path)) == 1


def test_nothing_appears_before_it_is_whole(tmp_path: Path) -> None:
    """Open pieces are no files; what is given up never becomes one."""
    writer = PieceWriter(FileStore(), str(tmp_path), 0, 0)
    writer.add(encoded(0, b"1\n", RejectedRecord(0, "x", "")))
    assert FileStore().list(str(tmp_path)) == []
    writer.abandon()

    assert files_in(tmp_path) == []


def test_a_repeated_bundle_writes_files_of_its_own(tmp_path: Path) -> None:
    """Two that wrote the same block do not touch each other's files."""
    one, other = (written(tmp_path, encoded(0, b"%d\n" % number)) for number in range(2))

    assert (Path(one.results).read_bytes(), Path(other.results).read_bytes()) == (b"0\n", b"1\n")


def test_distinct_errors_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past so many texts the others are counted together; known ones count on, and no error is lost."""
    monkeypatch.setattr(writers, "_MOST_REASONS", 3)
    bad = [RejectedRecord(n, f"reason {n % 5}", "") for n in range(20)]
    piece = written(tmp_path, encoded(0, b"", *bad), end(1))

    assert piece.stats == {"reason 0": 4, "reason 1": 4, "reason 2": 4, "(other errors)": 8}
    assert len(Path(piece.errors).read_bytes().splitlines()) == 20


def test_blocks_of_a_piece_have_the_same_columns(tmp_path: Path) -> None:
    """Blocks without rows have none; others may not differ."""
    piece = written(tmp_path, encoded(0), encoded(1, b"1\n", header=("a",)), encoded(2), end(3))
    assert piece.header == ("a",)

    with pytest.raises(InvalidOutputs, match="differ in their outputs"):
        written(tmp_path, encoded(0, b"1\n", header=("a",)), encoded(1, b"1\n", header=("b",)))


def test_a_piece_can_be_sent(tmp_path: Path) -> None:
    """From one process to another."""
    piece = written(tmp_path, encoded(0, b"1\n", RejectedRecord(0, "x", "")), end(1))

    assert pickle.loads(pickle.dumps(piece)) == piece


# ---- seals


def test_one_piece_is_the_shard(tmp_path: Path) -> None:
    """Its files are the shard's; nothing is copied."""
    piece = written(tmp_path, encoded(0, b"1\n", RejectedRecord(5, "x", "")), end(1))
    sealed = seal_shard(FileStore(), str(tmp_path), 2, [piece])

    assert (sealed.results, sealed.errors) == (piece.results, piece.errors)
    assert (sealed.shard, sealed.predictions, sealed.stats) == (2, 1, {"x": 1})


def test_pieces_are_joined_in_order(tmp_path: Path) -> None:
    """By the number of their first block, in whatever order they come."""
    bad = RejectedRecord(1, "x", ""), RejectedRecord(2, "x", "")
    pieces = [
        written(tmp_path, encoded(3, b"d\n", bad[1], header=("h",)), end(4)),
        written(tmp_path, encoded(0, b"a\n", header=("h",)), encoded(1, b"b\n", bad[0])),
        written(tmp_path, encoded(2, b"")),
    ]
    sealed = seal_shard(FileStore(), str(tmp_path), 2, pieces)

    assert Path(sealed.results).read_bytes() == b"a\nb\nd\n"
    assert [json.loads(line)["offset"] for line in Path(sealed.errors).read_text().splitlines()] == [1, 2]
    assert (sealed.predictions, sealed.stats, sealed.header) == (3, {"x": 2}, ("h",))


def test_a_shard_that_is_not_whole(tmp_path: Path) -> None:
    """Without its end, with two, with a block missing or one too many: an error, and no seal."""
    folder = str(tmp_path)
    first = written(tmp_path, encoded(0, b"a\n"))
    second = written(tmp_path, encoded(1, b"b\n"))
    last = written(tmp_path, end(2))
    for pieces in (
        [first, second],
        [first, last],
        [first, second, last, last],
        [first, second, second, last],
        [],
    ):
        with pytest.raises(Internal, match="Shard 2 is not whole"):
            seal_shard(FileStore(), folder, 2, pieces)
    with pytest.raises(NotFound):
        read_sealed_shards(FileStore(), folder, 3)

    assert seal_shard(FileStore(), folder, 2, [last, first, second]).predictions == 2


def test_pieces_that_overlap_are_not_whole(tmp_path: Path) -> None:
    """As many blocks as there should be, but one twice and one not at all."""
    twice = [written(tmp_path, encoded(0, b"a\n")), written(tmp_path, encoded(0, b"a\n"))]
    last = written(tmp_path, end(2))

    with pytest.raises(Internal, match="not whole"):
        seal_shard(FileStore(), str(tmp_path), 2, [*twice, last])


def test_pieces_with_other_columns(tmp_path: Path) -> None:
    """CSV has the same in each row."""
    pieces = [
        written(tmp_path, encoded(0, b"1\n", header=("a",))),
        written(tmp_path, encoded(1, b"1\n", header=("b",)), end(2)),
    ]

    with pytest.raises(InvalidOutputs, match="Use outputDataFormat JSON"):
        seal_shard(FileStore(), str(tmp_path), 2, pieces)


def test_seals_are_read_back(tmp_path: Path) -> None:
    """In the order of the shards; one that is missing is an error."""
    for shard in (1, 0):
        piece = written(
            tmp_path, encoded(0, b"1\n" * (shard + 1), RejectedRecord(0, f"r{shard}", "")), end(1)
        )
        seal_shard(FileStore(), str(tmp_path), shard, [piece])
    found = read_sealed_shards(FileStore(), str(tmp_path), 2)

    assert [(one.shard, one.predictions, one.stats) for one in found] == [
        (0, 1, {"r0": 1}),
        (1, 2, {"r1": 1}),
    ]
    with pytest.raises(NotFound):
        read_sealed_shards(FileStore(), str(tmp_path), 3)


def test_totals_are_over_all_shards() -> None:
    """Predictions in all, and errors with the most frequent first."""
    shards = [
        SealedShard(0, "", "", 5, {"a": 1, "b": 2}, ()),
        SealedShard(1, "", "", 7, {"c": 9, "a": 2}, ()),
    ]

    predictions, stats = sum_shards(shards)

    assert predictions == 12
    assert list(stats.items()) == [("c", 9), ("a", 3), ("b", 2)]
