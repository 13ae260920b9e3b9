"""Who gets which shard."""

from __future__ import annotations

import os
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
        taken = list(pool.map(lambda _: list(ShardQueue(tmp_path / "queue").take_shards()), range(8)))

    assert sorted((one for some in taken for one in some), key=lambda one: one.index) == SHARDS


def test_a_slow_worker_leaves_the_rest_to_others(tmp_path: Path) -> None:
    """They are handed out in the order in which they were filled in."""
    ShardQueue(tmp_path / "queue").fill(SHARDS[::-1])
    slow = ShardQueue(tmp_path / "queue").take_shards()

    assert next(slow) == SHARDS[-1]
    assert list(ShardQueue(tmp_path / "queue").take_shards()) == SHARDS[-2::-1]
    assert list(slow) == []


def test_what_a_lost_worker_has_taken_is_given_back(tmp_path: Path) -> None:
    """All of it: what it has finished is passed over by who takes it again."""
    queue = ShardQueue(tmp_path / "queue")
    queue.fill(SHARDS)
    taking = queue.take_shards()
    assert [next(taking) for _ in range(3)] == SHARDS[:3]

    assert (queue.has_taken(os.getpid()), queue.has_taken(os.getpid() + 1)) == (True, False)
    queue.give_back(os.getpid() + 1)
    assert queue.count_waiting() == len(SHARDS) - 3
    queue.give_back(os.getpid())
    assert queue.count_waiting() == len(SHARDS)
    assert list(queue.take_shards()) == SHARDS
