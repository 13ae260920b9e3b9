"""Who gets which shard."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from batch.beam.shard_queue import ShardQueue
from batch.records.input_shards import Shard, Split
from serving.artifacts.storage import FileInfo

SHARDS = [Shard(index, (Split(FileInfo("/in", 9, "1", gzip=False), index),)) for index in range(60)]


def test_each_shard_is_taken_once(tmp_path: Path) -> None:
    """By many workers that take them at the same time."""
    ShardQueue(tmp_path / "queue").fill(SHARDS)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: list(ShardQueue(tmp_path / "queue").take_all()), range(8)))

    assert sorted((one for some in taken for one in some), key=lambda one: one.index) == SHARDS


def test_a_slow_worker_leaves_the_rest_to_others(tmp_path: Path) -> None:
    """They are handed out in the order in which they were filled in."""
    ShardQueue(tmp_path / "queue").fill(SHARDS[::-1])
    slow = ShardQueue(tmp_path / "queue").take_all()

    assert next(slow) == SHARDS[-1]
    assert list(ShardQueue(tmp_path / "queue").take_all()) == SHARDS[-2::-1]
    assert list(slow) == []
