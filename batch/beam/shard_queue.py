"""Hands out shards to the workers of this machine: each takes the next one once it has finished its last.

Beam's embedded runner deals them out before it starts, so that all would wait for the slowest worker, and no
other could join.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

from batch.records.input_shards import Shard

_WAITING, _TAKEN = ".waiting", ".taken"


class ShardQueue:
    """A folder with a file for each shard: its name has the place in the queue, and who has taken it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, shards: Sequence[Shard]) -> None:
        """Before workers start; the folder is made."""
        self._folder.mkdir(parents=True)
        for place, shard in enumerate(shards):
            (self._folder / f"{place:06d}{_WAITING}").write_bytes(pickle.dumps(shard))

    def take_shards(self) -> Iterator[Shard]:
        """The shards that this worker gets, one by one, until none waits any more."""
        while (shard := self._take_next()) is not None:
            yield shard

    def count_waiting(self) -> int:
        return sum(1 for _ in self._folder.glob(f"*{_WAITING}"))

    def has_taken(self, worker: int) -> bool:
        """Whether the worker with this pid has taken a shard."""
        return any(True for _ in self._folder.glob(f"*.{worker}{_TAKEN}"))

    def give_back(self, worker: int) -> None:
        """Let others take what the worker with this pid has taken, and will not finish."""
        for taken in self._folder.glob(f"*.{worker}{_TAKEN}"):
            taken.rename(self._folder / f"{taken.name.partition('.')[0]}{_WAITING}")

    def _take_next(self) -> Shard | None:
        for waiting in sorted(self._folder.glob(f"*{_WAITING}")):
            taken = waiting.with_suffix(f".{os.getpid()}{_TAKEN}")
            try:
                # Of several workers, one succeeds.
                waiting.rename(taken)
            except FileNotFoundError:
                continue
            shard: Shard = pickle.loads(taken.read_bytes())
            return shard
        return None
