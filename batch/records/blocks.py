"""The elements of the pipeline: blocks of records, so that Beam's cost per element is paid per block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.errors import ServingError
from serving.runtimes.instance_batch import Batch

# Bytes of a record in the report of its error. Contract, section 4.
SNIPPET = 1000


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Consecutive records of one file.

    `index` counts the blocks of a shard, the `last` of which holds no records. `offset` is where the first
    record begins in the (uncompressed) file. Lines are `data`, without their last line end; other records are
    in `records`, each with its offset. `stored_bytes` of the file were read for it, from `begun` (seconds
    since the epoch) on.
    """

    shard: int
    index: int
    file: str = ""
    offset: int = 0
    data: bytes = b""
    records: tuple[tuple[int, bytes], ...] | None = None
    stored_bytes: int = 0
    begun: float = math.inf
    last: bool = False

    def split_records(self) -> list[tuple[int, bytes]]:
        """The records, each with its offset."""
        if self.records is not None:
            return list(self.records)
        found = []
        offset = self.offset
        for line in self.data.split(b"\n"):
            found.append((offset, line.removesuffix(b"\r")))
            offset += len(line) + 1
        return found


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record without a result: its offset, why, and its first characters."""

    offset: int
    reason: str
    snippet: str


@dataclass(frozen=True, slots=True)
class BatchedBlock:
    """A block's instances, and later its predictions: `parts` in the order of the records.

    `rows` has for each the number of its record in the block (None: all of them), `keys` its key fields,
    which are copied to the result and not given to the model (None: no keys). `rejected` records have no row.
    """

    block: RecordBlock
    parts: tuple[Batch, ...]
    rows: Sequence[int] | None = None
    keys: Sequence[Mapping[str, Any]] | None = None
    rejected: tuple[RejectedRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block as text: `results` are whole lines, `predictions` of them; `header` names their columns."""

    shard: int
    index: int
    file: str
    results: bytes
    predictions: int
    stored_bytes: int
    begun: float
    last: bool
    rejected: tuple[RejectedRecord, ...] = ()
    header: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """What one bundle wrote of a shard: its files and its counts.

    It has `blocks` blocks, from `first` on; `end` is the index of the shard's last block, if it is here.
    """

    shard: int
    first: int
    blocks: int
    end: int | None
    results: str
    errors: str
    predictions: int
    stats: Mapping[str, int] = field(default_factory=dict)
    header: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it has all blocks of the shard."""
        return self.first == 0 and self.end == self.blocks - 1


def reject_record(located: tuple[int, bytes], error: ServingError) -> RejectedRecord:
    offset, record = located
    return RejectedRecord(offset, error.message, record[:SNIPPET].decode(errors="replace"))
