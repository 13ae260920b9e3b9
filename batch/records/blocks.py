"""What flows through the pipeline: blocks of records. Beam's cost per element is paid once per block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.errors import ServingError
from serving.runtimes.instance_batch import Batch

# Of a record, in a report of what is wrong with it. Contract, section 4.
SNIPPET = 1000


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Consecutive records of one file.

    `index` counts the blocks of a shard, the `last` of which holds no records. `offset` is where the first
    record begins in the (uncompressed) file. Lines are `data`, their last line end taken off; records that
    are no lines are in `records`, each with its offset. `stored` bytes of the file were read for it, from
    `begun` (seconds since the epoch) on.
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
    """A record that has no result: where it begins, why, and what it looks like."""

    offset: int
    reason: str
    snippet: str


@dataclass(frozen=True, slots=True)
class BatchedBlock:
    """A block's instances, and later its predictions: `parts` in the order of the records.

    `rows` says for each the number of its record in the block, `keys` what passes the model by; None: all
    the block's records, nothing. `bad` are the records that have none.
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

    It has `blocks` blocks, from the `first` on; `end` is the number of the shard's last one, if that is here.
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


def reject_record(located: tuple[int, bytes], error: ServingError) -> RejectedRecord:
    """A record that has no result, by its offset and content."""
    offset, record = located
    return RejectedRecord(offset, error.message, record[:SNIPPET].decode(errors="replace"))
