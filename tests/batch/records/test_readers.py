"""Files as blocks of records."""

from __future__ import annotations

import gzip
import itertools
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from batch.records import input_shards, readers
from batch.records.blocks import RecordBlock
from batch.records.input_shards import Shard, Split
from serving.artifacts.storage import FileInfo, FileStore
from serving.errors import InvalidArgument, Unavailable
from tests.emulator import Emulator

BOM = b"\xef\xbb\xbf"
RECORDS = [b"first", b"", b'{"x": 1}', b"\xff\x00\n\r", bytes(range(256)) * 5]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few bytes, so that every border is met."""
    monkeypatch.setattr(readers, "BLOCK_BYTES", 7)


def item_of(path: Path) -> FileInfo:
    (item,) = FileStore().glob(str(path))
    return item


def read(path: Path | FileInfo, *cuts: int, data_format: str = "JSON") -> list[list[RecordBlock]]:
    """The blocks of a file that is cut at these bytes, one list per split."""
    item = path if isinstance(path, FileInfo) else item_of(path)
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < item.size}), None]
    splits = [Split(item, start or 0, end) for start, end in itertools.pairwise(bounds)]
    return [
        list(readers.read_shard(FileStore(), Shard(number, (split,)), data_format))
        for number, split in enumerate(splits)
    ]


def lines_of(shards: Sequence[Sequence[RecordBlock]]) -> list[tuple[int, bytes]]:
    """All records with their offsets; the end of each shard holds none."""
    return [line for blocks in shards for block in blocks if not block.last for line in block.split_records()]


def lines_in(content: bytes) -> Iterator[tuple[int, bytes]]:
    """What the lines of a file are, and where they begin."""
    skipped = len(BOM) if content.startswith(BOM) else 0
    for found in re.finditer(rb"[^\n]*\n|[^\n]+\Z", content[skipped:]):
        yield found.start() + skipped, found[0].removesuffix(b"\n").removesuffix(b"\r")


# ---- lines

pieces = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\n\n", b"a", b"[1, 2]", b"\r", b" ", "ä€😀".encode(), b"x" * 30, BOM]),
    max_size=25,
)
texts = st.builds(lambda bom, parts: bom + b"".join(parts), st.sampled_from([b"", BOM]), pieces)
in_this_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(texts.filter(bool), st.lists(st.integers(0, 200), max_size=6))
@example(BOM + b"a\nb\n", [2])
@example(BOM + b"a\nb\n", [3])
@example(BOM + b"aaaaaaaaaaaa\nb\n", [1])
@example(BOM + b"\nb", [3, 4])
@example(b"a\nb\nc", [2, 4])
@in_this_folder
def test_each_line_is_read_once(tmp_path: Path, small_blocks: None, content: bytes, cuts: list[int]) -> None:
    """Wherever a file is cut, its splits together hold each of its lines once, with its place in the file."""
    file = tmp_path / "lines"
    file.write_bytes(content)

    found = lines_of(read(file, *cuts))

    assert found == list(lines_in(content))
    assert all(content[offset:].startswith(line) for offset, line in found)


@given(texts.filter(bool))
@in_this_folder
def test_a_file_cut_at_each_byte(tmp_path: Path, content: bytes) -> None:
    """Even splits of one byte each hold each line once; most hold none."""
    file = tmp_path / "lines"
    file.write_bytes(content)

    assert lines_of(read(file, *range(1, len(content)))) == list(lines_in(content))


def test_blocks_are_whole_lines_of_about_a_size(tmp_path: Path) -> None:
    """Blocks end with a line, hold about a mebibyte, and count from 0; an empty one ends a shard."""
    line = b"x" * 99 + b"\n"
    (tmp_path / "lines").write_bytes(line * 50_000)
    ((*blocks, last),) = read(tmp_path / "lines")

    assert [block.index for block in (*blocks, last)] == list(range(len(blocks) + 1))
    assert (last.last, last.data, last.file) == (True, b"", "")
    assert all(len(block.data) % 100 == 99 and len(block.data) < (1 << 20) + 100 for block in blocks)
    assert len(blocks) < 7
    assert {block.file for block in blocks} == {str(tmp_path / "lines")}
    assert sum(block.stored_bytes for block in blocks) == 5_000_000


def test_a_shard_may_have_many_files(tmp_path: Path) -> None:
    """Blocks count on from file to file, each says which it is of, and one last block ends them all."""
    for name in "abc":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    splits = tuple(Split(item_of(tmp_path / name)) for name in "abc")
    blocks = list(readers.read_shard(FileStore(), Shard(4, splits), "TEXT"))

    assert [(block.shard, block.index) for block in blocks] == [(4, 0), (4, 1), (4, 2), (4, 3)]
    assert [block.data for block in blocks] == [b"a1\na2", b"b1\nb2", b"c1\nc2", b""]
    assert [Path(block.file).name for block in blocks] == ["a", "b", "c", ""]
    assert [block.last for block in blocks] == [False, False, False, True]


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record over the bound is an error that says where, before it fills the memory."""
    monkeypatch.setattr(readers, "MAX_RECORD", 100)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 16)
    (tmp_path / "lines").write_bytes(b"short\n" + b"x" * 10_000)

    with pytest.raises(InvalidArgument) as caught:
        read(tmp_path / "lines")

    assert "byte 6 " in str(caught.value)


def test_a_long_line_costs_no_more_than_its_length(tmp_path: Path) -> None:
    """It comes in a hundred pieces, and must not be copied with each: that took 9 s."""
    path = tmp_path / "long"
    path.write_bytes(b"0" * (128 << 20))

    begun = time.process_time()
    ((block, _),) = read(path)

    assert len(block.data) == 128 << 20
    assert time.process_time() - begun < 4


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    """What was found is what is read, or the attempt is lost: Unavailable."""
    (tmp_path / "lines").write_text("1\n")
    item = item_of(tmp_path / "lines")
    (tmp_path / "lines").write_text("1\n2\n")

    with pytest.raises(Unavailable):
        read(item)


# ---- gzip


@given(texts, st.integers(1, 4))
@in_this_folder
def test_compressed_lines(tmp_path: Path, small_blocks: None, content: bytes, members: int) -> None:
    """A gzip file, of several members too, holds the lines of its content; offsets are those in there."""
    size = len(content) // members + 1
    parts = [content[start : start + size] for start in range(0, max(len(content), 1), size)]
    (tmp_path / "lines.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))

    assert lines_of(read(tmp_path / "lines.gz")) == list(lines_in(content))


def test_bytes_read_are_those_stored(tmp_path: Path) -> None:
    """Progress counts compressed bytes, as the sizes of files do."""
    content = "".join(f"{random.random()}\n" for _ in range(200_000)).encode()
    (tmp_path / "lines.gz").write_bytes(gzip.compress(content, 1))
    stored = sum(block.stored_bytes for blocks in read(tmp_path / "lines.gz") for block in blocks)

    assert 0 < stored <= (tmp_path / "lines.gz").stat().st_size < len(content)
    assert stored > 0.9 * (tmp_path / "lines.gz").stat().st_size


@pytest.mark.parametrize("left", [3, 12, 40, -1, -8])
def test_a_truncated_gzip_file_is_refused(left: int, tmp_path: Path) -> None:
    """Wherever it ends too early, it says so and which file it is."""
    whole = gzip.compress(random.Random(1).randbytes(200))
    (tmp_path / "lines.gz").write_bytes(whole[:left])

    with pytest.raises(InvalidArgument, match=r"lines\.gz is not a whole gzip file"):
        read(tmp_path / "lines.gz")


@pytest.mark.parametrize("place", [11, 60, -6, -2])
def test_a_damaged_gzip_file_is_refused(place: int, tmp_path: Path) -> None:
    """A flipped bit is found, at the latest by the checksum at its end."""
    whole = bytearray(gzip.compress(b"abc\n" * 50 + random.Random(1).randbytes(200)))
    whole[place] ^= 16
    (tmp_path / "lines.gz").write_bytes(whole)

    with pytest.raises(InvalidArgument, match=r"lines\.gz is not a whole gzip file"):
        read(tmp_path / "lines.gz")


def test_names_must_fit_the_content(tmp_path: Path) -> None:
    """Compressed without .gz, and .gz without being compressed: the errors say which it is."""
    (tmp_path / "packed").write_bytes(gzip.compress(b"1\n"))
    (tmp_path / "plain.gz").write_bytes(b"1\n")

    with pytest.raises(InvalidArgument, match=r"packed is compressed with gzip"):
        read(tmp_path / "packed")
    with pytest.raises(InvalidArgument, match=r"must not be called \.gz"):
        read(tmp_path / "plain.gz")


@pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")
def test_a_bucket_says_what_is_compressed(emulator: Emulator) -> None:
    """An object with Content-Encoding: gzip is read through gzip whatever its name."""
    uri = f"gs://{emulator.bucket()}/lines.jsonl"
    emulator.put(uri, gzip.compress(b"[1]\n[2]\n"), encoding="gzip")
    (item,) = FileStore().glob(uri)

    assert lines_of(read(item)) == [(0, b"[1]"), (4, b"[2]")]


@pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning")
def test_a_bucket_is_cut_like_a_disk(emulator: Emulator, small_blocks: None) -> None:
    """Splits of an object hold each of its lines once."""
    content = b"".join(b"%d\n" % number for number in range(8, 14))
    uri = f"gs://{emulator.bucket()}/lines.jsonl"
    emulator.put(uri, content)
    (item,) = FileStore().glob(uri)

    assert lines_of(read(item, 1, 2, 7, 8)) == list(lines_in(content))


# ---- TFRecord


@pytest.fixture(scope="session")
def tf_files(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files with RECORDS as TensorFlow writes them, by data format."""
    folder = tmp_path_factory.mktemp("records")
    for data_format, options in (("TF_RECORD", ""), ("TF_RECORD_GZIP", "GZIP")):
        with tf.io.TFRecordWriter(str(folder / data_format), options) as writer:
            for record in RECORDS:
                writer.write(record)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("data_format", ["TF_RECORD", "TF_RECORD_GZIP"])
def test_records_of_tensorflow(
    data_format: str, tf_files: dict[str, bytes], tmp_path: Path, small_blocks: None
) -> None:
    """TensorFlow's own files are read, plain and compressed, with the place of each record."""
    (tmp_path / "records").write_bytes(tf_files[data_format])
    found = lines_of(read(tmp_path / "records", data_format=data_format))

    assert [record for _, record in found] == RECORDS
    places = itertools.accumulate((16 + len(record) for record in RECORDS[:-1]), initial=0)
    assert [offset for offset, _ in found] == list(places)


def test_no_damage_goes_unnoticed(tf_files: dict[str, bytes], tmp_path: Path) -> None:
    """Any flipped bit of a record file, in a length, a record or a checksum, is an error with the place."""
    whole = tf_files["TF_RECORD"]
    for bit in random.Random(3).sample(range(len(whole) * 8), 150):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "records").write_bytes(damaged)

        with pytest.raises(InvalidArgument, match="a checksum does not match"):
            read(tmp_path / "records", data_format="TF_RECORD")


def test_a_record_file_that_ends_early_is_refused(tf_files: dict[str, bytes], tmp_path: Path) -> None:
    """Wherever it is cut but between two records."""
    whole = tf_files["TF_RECORD"]
    between = set(itertools.accumulate(16 + len(record) for record in RECORDS))
    for size in {*range(1, 60), len(whole) - 1, len(whole) - 5} - between:
        (tmp_path / "records").write_bytes(whole[:size])

        with pytest.raises(InvalidArgument, match="it ends in the middle of a record"):
            read(tmp_path / "records", data_format="TF_RECORD")


@pytest.mark.parametrize(
    ("written", "said"),
    [("TF_RECORD", "TF_RECORD_GZIP"), ("TF_RECORD_GZIP", "TF_RECORD")],
)
def test_the_wrong_record_format_is_told(
    written: str, said: str, tf_files: dict[str, bytes], tmp_path: Path
) -> None:
    """Compressed or not: the error names the format that was asked for or the one to ask for."""
    (tmp_path / "records").write_bytes(tf_files[written])

    with pytest.raises(InvalidArgument, match="TF_RECORD"):
        read(tmp_path / "records", data_format=said)


def test_lines_are_no_records(tmp_path: Path) -> None:
    """A file of lines is found out by its first checksum."""
    (tmp_path / "lines").write_bytes(b"[1, 2, 3]\n" * 10)

    with pytest.raises(InvalidArgument, match="is no TFRecord file"):
        read(tmp_path / "lines", data_format="TF_RECORD")


def test_a_record_that_is_too_long_is_refused(
    tf_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its length says, before it is read."""
    monkeypatch.setattr(readers, "MAX_RECORD", 1000)
    (tmp_path / "records").write_bytes(tf_files["TF_RECORD"])

    with pytest.raises(InvalidArgument, match="longer than 1000 bytes"):
        read(tmp_path / "records", data_format="TF_RECORD")


def test_plans_and_readers_agree(tmp_path: Path) -> None:
    """What is planned over files of all kinds, read shard by shard, is every line once."""
    wanted = []
    for number in range(20):
        content = "".join(f"{number}-{line}\n" for line in range(number * 7)).encode()
        wanted += content.split()
        name = f"f{number:02d}" + (".gz" if number % 3 == 0 else "")
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    items = input_shards.find_inputs(FileStore(), [f"{tmp_path}/*"])
    shards = input_shards.plan_shards(items, 7, "JSON")
    found = lines_of([list(readers.read_shard(FileStore(), shard, "JSON")) for shard in shards])

    assert len(shards) > 4
    assert [line for _, line in found] == wanted
