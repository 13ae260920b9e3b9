"""The input of a job in shards: consecutive pieces of the input, each of which becomes one result file.

A shard is a list of splits, and a split a byte range of a file. Uncompressed lines can be split anywhere: the
reader of a range takes the lines that begin in it. Compressed files and TFRecord files are read from
their beginning, by one worker each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serving.artifacts.storage import FileInfo, FileStore
from serving.errors import InvalidArgument

LINES = frozenset({"JSON", "TEXT"})

# Bytes of input that are worth the start of a worker, and bytes per result file, about.
_WORKER_BYTES, _SHARD_BYTES = 4 << 20, 64 << 20
# So many shards for each worker, if they are not smaller than this: a worker that is lost, slow or late then
# costs, or takes over, a part of a share only.
_SHARDS_PER_WORKER, _LEAST_SHARD_BYTES = 4, 8 << 20
# The assumed compression ratio, for balance only.
_COMPRESSION_RATIO = 4


@dataclass(frozen=True, slots=True)
class Split:
    """The records of a file that begin at `start` or later and before `end` (None: up to its end)."""

    item: FileInfo
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """The input of one result file."""

    index: int
    splits: tuple[Split, ...]


def find_inputs(files: FileStore, paths: Sequence[str]) -> tuple[FileInfo, ...]:
    """The files that match the input paths, in the order of the paths, each once.

    Raises NotFound, PermissionDenied, or InvalidArgument for an invalid path or when all files are empty.
    """
    found = {item.uri: item for path in paths for item in files.glob(path)}
    items = tuple(found.values())
    if not any(item.size for item in items):
        files_found = format_quantity(len(items), "file")
        raise InvalidArgument(f"There is nothing to predict: {files_found} at {', '.join(paths)}, all empty.")
    return items


def choose_worker_count(items: Sequence[FileInfo], most: int, data_format: str) -> int:
    weight = sum(_weigh_item(item, data_format) for item in items)
    return max(1, min(most, math.ceil(weight / _WORKER_BYTES)))


def plan_shards(items: Sequence[FileInfo], workers: int, data_format: str) -> tuple[Shard, ...]:
    """Shards of about the same size, the same number for every worker."""
    total = sum(_weigh_item(item, data_format) for item in items)
    count = _count_shards(total, workers)
    groups: list[list[Split]] = [[] for _ in range(count)]
    before = 0
    for split, weight in _split_items(items, total / count, data_format):
        # By its middle: a split across a border goes where most of it is.
        groups[int((before + weight / 2) * count / total)].append(split)
        before += weight
    filled = [group for group in groups if group]
    return tuple(Shard(index, tuple(group)) for index, group in enumerate(filled))


def _count_shards(size: int, workers: int) -> int:
    least = min(workers * _SHARDS_PER_WORKER, size // _LEAST_SHARD_BYTES)
    return math.ceil(max(1, math.ceil(size / _SHARD_BYTES), least) / workers) * workers


def sort_by_size(shards: Sequence[Shard], data_format: str) -> list[Shard]:
    """The largest first: in this order, workers get equal loads."""

    def weigh_shard(shard: Shard) -> int:
        return sum(
            _weigh_item(split.item, data_format) if split.end is None else split.end - split.start
            for split in shard.splits
        )

    return sorted(shards, key=weigh_shard, reverse=True)


def count_bytes(shard: Shard) -> int:
    """As stored."""
    return sum((split.item.size if split.end is None else split.end) - split.start for split in shard.splits)


def is_compressed(item: FileInfo, data_format: str) -> bool:
    return item.gzip or (
        item.uri.endswith(".gz") if data_format in LINES else data_format == "TF_RECORD_GZIP"
    )


def _split_items(items: Sequence[FileInfo], size: float, data_format: str) -> Iterator[tuple[Split, int]]:
    """Splits with their weights: files that can be split end where a shard ends."""
    before = 0
    for item in items:
        if not item.size:
            continue
        if is_compressed(item, data_format) or data_format not in LINES:
            weight = _weigh_item(item, data_format)
            yield Split(item), weight
            before += weight
            continue
        start = 0
        while start < item.size:
            stop = min(item.size, start + math.ceil(size - before % size))
            yield Split(item, start, None if stop - start == item.size else stop), stop - start
            before += stop - start
            start = stop


def _weigh_item(item: FileInfo, data_format: str) -> int:
    return item.size * _COMPRESSION_RATIO if is_compressed(item, data_format) else item.size


def format_quantity(number: int, noun: str) -> str:
    """1 file, 2 files."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
