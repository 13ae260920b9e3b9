"""How a job's input is cut into shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batch.records import input_shards
from batch.records.input_shards import Shard, Split
from serving.artifacts.storage import FileInfo, FileStore
from serving.errors import InvalidArgument, NotFound

MIB = 1 << 20


def item(number: int, size: int, *, name: str = "", gzip: bool = False) -> FileInfo:
    return FileInfo(f"/in/{number:05d}{name}", size, str(number), gzip)


sizes = st.integers(0, 300 * MIB) | st.integers(0, 20)
names = st.sampled_from(["", ".jsonl", ".gz"])
some_items = st.lists(st.tuples(sizes, names, st.booleans()), min_size=1, max_size=20).map(
    lambda found: tuple(item(n, size, name=name, gzip=gz) for n, (size, name, gz) in enumerate(found))
)
formats = st.sampled_from(["JSON", "TEXT", "TF_RECORD", "TF_RECORD_GZIP"])


def range_of(split: Split) -> tuple[int, int]:
    return split.start, split.item.size if split.end is None else split.end


def weight(shard: Shard) -> int:
    return sum(end - start for start, end in map(range_of, shard.splits))


@given(some_items, st.integers(1, 40), formats)
@example((item(0, 5), item(1, 0, name=".gz")), 1, "JSON")
@example((item(0, 5), item(1, 0)), 3, "TF_RECORD")
def test_every_byte_is_in_one_split(found: tuple[FileInfo, ...], workers: int, data_format: str) -> None:
    """Splits cover each file without gap or overlap, in the order of the files; shards count from 0."""
    if not any(one.size for one in found):
        return
    shards = input_shards.plan_shards(found, workers, data_format)
    splits = [split for shard in shards for split in shard.splits]

    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert all(shard.splits for shard in shards)
    covered = dict.fromkeys(found, 0)
    for split in splits:
        start, end = range_of(split)
        assert start == covered[split.item]
        assert end > start
        covered[split.item] = end
    assert covered == {one: one.size for one in found}
    assert [split.item for split in splits] == sorted((one.item for one in splits), key=lambda one: one.uri)


@given(some_items, st.integers(1, 40), formats)
def test_what_cannot_be_cut_is_whole(found: tuple[FileInfo, ...], workers: int, data_format: str) -> None:
    """Compressed files and TFRecord files are one split each, from their beginning to their end."""
    if not any(one.size for one in found):
        return
    for shard in input_shards.plan_shards(found, workers, data_format):
        for split in shard.splits:
            if input_shards.is_compressed(split.item, data_format) or data_format.startswith("TF"):
                assert (split.start, split.end) == (0, None)


@given(st.lists(sizes, min_size=1, max_size=30).filter(any), st.integers(1, 40))
@example([1] * 1000 + [10**9], 2)
@example([10**9] + [1] * 1000, 2)
@example([1, 1], 40)
def test_lines_are_shared_out_evenly(found: list[int], workers: int) -> None:
    """No shard of lines is a tenth larger than the mean, and there are as many for each worker."""
    total = sum(found)
    shards = input_shards.plan_shards(
        [item(number, size) for number, size in enumerate(found)], workers, "JSON"
    )

    least = min(4 * workers, total // (8 * MIB))
    wanted = math.ceil(max(1, math.ceil(total / (64 * MIB)), least) / workers) * workers
    assert len(shards) <= wanted
    assert max(map(weight, shards)) <= 1.1 * total / wanted + 2
    assert len(shards) == wanted or total < 2 * wanted


def test_each_worker_has_several_shards() -> None:
    """As long as they are worth a file each: 8 MiB and more."""

    def count(size: int, workers: int) -> int:
        return len(input_shards.plan_shards([item(0, size)], workers, "JSON"))

    assert [count(size * MIB, 2) for size in (1, 17, 40, 64, 500, 1000)] == [2, 2, 6, 8, 8, 16]


def test_tiny_files_are_read_together() -> None:
    """A thousand tiny files beside a huge one do not make a shard each, and load no worker alone."""
    found = [item(number, 100) for number in range(1000)] + [item(1000, 500 * MIB)]
    shards = input_shards.plan_shards(found, 2, "JSON")

    assert len(shards) == 8
    assert sum(len(shard.splits) for shard in shards) <= 1000 + 8
    assert max(map(weight, shards)) - min(map(weight, shards)) < 1000


def test_compressed_files_are_balanced_as_what_they_hold() -> None:
    """Four files of the same compressed size go to two workers in pairs."""
    found = [item(number, MIB // 2, name=".gz") for number in range(4)]
    shards = input_shards.plan_shards(found, 2, "JSON")

    assert [len(shard.splits) for shard in shards] == [2, 2]


@pytest.mark.parametrize(
    ("name", "gzip", "data_format", "compressed"),
    [
        ("a.jsonl", False, "JSON", False),
        ("a.gz", False, "JSON", True),
        ("a.gz", False, "TEXT", True),
        ("a.jsonl", True, "JSON", True),
        ("a.gz", False, "TF_RECORD", False),
        ("a.tfrecord", True, "TF_RECORD", True),
        ("a.tfrecord", False, "TF_RECORD_GZIP", True),
    ],
)
def test_what_is_compressed(name: str, gzip: bool, data_format: str, compressed: bool) -> None:
    """Lines by their name, TFRecord files by their format, and whatever the bucket says is compressed."""
    assert input_shards.is_compressed(FileInfo(f"gs://b/{name}", 1, "1", gzip), data_format) is compressed


@pytest.mark.parametrize(
    ("found", "most", "workers"),
    [
        ([1], 8, 1),
        ([4 * MIB], 8, 1),
        ([4 * MIB + 1], 8, 2),
        ([MIB] * 9, 8, 3),
        ([1 << 40], 8, 8),
        ([1 << 40], 0, 1),
    ],
)
def test_as_many_workers_as_are_worth_their_start(found: list[int], most: int, workers: int) -> None:
    """One for each 4 MiB begun, at least one, and never more than there may be."""
    assert input_shards.choose_worker_count([item(0, size) for size in found], most, "JSON") == workers


def test_compressed_input_is_worth_more_workers() -> None:
    """A compressed byte is taken for four."""
    assert input_shards.choose_worker_count([item(0, 2 * MIB, name=".gz")], 8, "JSON") == 2


@given(some_items, st.integers(1, 40), formats)
def test_the_largest_shards_go_first(found: tuple[FileInfo, ...], workers: int, data_format: str) -> None:
    """The same shards, those with the most to read at the front."""
    if not any(one.size for one in found):
        return
    shards = input_shards.plan_shards(found, workers, data_format)
    ordered = input_shards.sort_by_size(shards, data_format)

    assert sorted(ordered, key=lambda shard: shard.index) == list(shards)
    if all(not input_shards.is_compressed(one, data_format) for one in found):
        weights = [weight(shard) for shard in ordered]
        assert weights == sorted(weights, reverse=True)


def test_a_file_is_read_once(tmp_path: Path) -> None:
    """Patterns that overlap, a path given twice and a path with its scheme name the same files."""
    for name in ("a1", "a2", "b"):
        (tmp_path / name).write_text("1\n")
    paths = [f"{tmp_path}/b", f"{tmp_path}/a*", f"{tmp_path}/*", f"file://{tmp_path}/a2", f"{tmp_path}/b"]

    found = input_shards.find_inputs(FileStore(), paths)

    assert [Path(one.uri).name for one in found] == ["b", "a1", "a2"]


@pytest.mark.parametrize(
    ("paths", "kind", "words"),
    [
        (["{}/missing"], NotFound, "missing"),
        (["{}/empty", "{}/none-*"], NotFound, "none-"),
        (["{}"], InvalidArgument, "/*"),
        (["{}/*/x"], InvalidArgument, "*"),
        (["s3://bucket/x"], InvalidArgument, "s3"),
        (["{}/empty", "{}/also-empty"], InvalidArgument, "2 files"),
        (["{}/empty"], InvalidArgument, "1 file at"),
    ],
)
def test_what_is_no_input_is_refused(
    paths: Sequence[str], kind: type[Exception], words: str, tmp_path: Path
) -> None:
    """A path that names nothing, a folder, a wrong wildcard or only empty files: the error says which."""
    (tmp_path / "empty").touch()
    (tmp_path / "also-empty").touch()

    with pytest.raises(kind) as caught:
        input_shards.find_inputs(FileStore(), [path.format(tmp_path) for path in paths])

    assert words in str(caught.value)


def test_an_empty_file_among_others_is_no_harm(tmp_path: Path) -> None:
    """It is found, and nothing is planned for it."""
    (tmp_path / "a").touch()
    (tmp_path / "b").write_text("1\n")
    found = input_shards.find_inputs(FileStore(), [f"{tmp_path}/*"])
    (shard,) = input_shards.plan_shards(found, 1, "JSON")

    assert len(found) == 2
    assert [Path(split.item.uri).name for split in shard.splits] == ["b"]
