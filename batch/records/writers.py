"""Encoded blocks into files, and what the bundles wrote of a shard into one description of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import accumulate
from typing import BinaryIO
from uuid import uuid4

import msgspec

from batch.records.blocks import EncodedBlock, ShardPiece
from serving.artifacts.storage import FileStore
from serving.errors import Internal, InvalidOutputs

# Distinct texts of errors that are counted each by itself, per piece; the rest is counted as one.
_MOST_REASONS = 1000
_OTHERS = "(other errors)"


class SealedShard(msgspec.Struct, frozen=True):
    """A shard that is complete: its files in the temporary folder, "" for errors where there are none."""

    shard: int
    results: str
    errors: str
    predictions: int
    stats: dict[str, int]
    header: tuple[str, ...]


class _ErrorLine(msgspec.Struct, frozen=True):
    """A line of an errors file: where the record is, why it has no result, and how it begins."""

    file: str
    offset: int
    reason: str
    snippet: str


class PieceWriter:
    """Writes the blocks of one shard that one bundle gets, in the order in which they come."""

    def __init__(self, files: FileStore, folder: str, shard: int, first: int) -> None:
        # A name of its own: bundles may be repeated, and of two that wrote the same only one counts.
        name = f"{folder}/pieces/{shard:05d}-{uuid4().hex}"
        self._files = files
        self._open = ExitStack()
        self._shard = shard
        self._first = first
        self._results_name, self._errors_name = f"{name}.results", f"{name}.errors"
        self._results = self._create_file(self._results_name)
        self._errors: BinaryIO | None = None
        self._stats: Counter[str] = Counter()
        self._predictions = self._blocks = 0
        self._end: int | None = None
        self._header: tuple[str, ...] = ()

    def add(self, block: EncodedBlock) -> None:
        """Append a block."""
        self._results.write(block.results)
        self._predictions += block.predictions
        self._blocks += 1
        self._end = block.index if block.last else self._end
        if block.header:
            self._header = _require_same_header(self._header, block.header)
        if block.rejected:
            self._add_errors(block)

    def close(self) -> ShardPiece:
        """Have the files appear."""
        self._open.close()
        return ShardPiece(
            shard=self._shard,
            first=self._first,
            blocks=self._blocks,
            end=self._end,
            results=self._results_name,
            errors=self._errors_name if self._errors is not None else "",
            predictions=self._predictions,
            stats=dict(self._stats),
            header=self._header,
        )

    def abandon(self) -> None:
        """Drop what was written."""
        error = Internal("The bundle was given up.")
        self._open.__exit__(type(error), error, None)

    def _add_errors(self, block: EncodedBlock) -> None:
        if self._errors is None:
            self._errors = self._create_file(self._errors_name)
        for bad in block.rejected:
            line = _ErrorLine(block.file, bad.offset, bad.reason, bad.snippet)
            self._errors.write(msgspec.json.encode(line) + b"\n")
            known = bad.reason in self._stats or len(self._stats) < _MOST_REASONS
            self._stats[bad.reason if known else _OTHERS] += 1

    def _create_file(self, uri: str) -> BinaryIO:
        created: AbstractContextManager[BinaryIO] = self._files.create(uri)
        return self._open.enter_context(created)


def seal_shard(files: FileStore, folder: str, shard: int, pieces: Iterable[ShardPiece]) -> SealedShard:
    """Make one of the pieces of a shard, and write down that it is complete. Raises Internal if it is not."""
    ordered = sorted(pieces, key=lambda piece: piece.first)
    *firsts, blocks = accumulate((piece.blocks for piece in ordered), initial=0)
    ends = [piece.end for piece in ordered if piece.end is not None]
    if ends != [blocks - 1] or [piece.first for piece in ordered] != firsts:
        raise Internal(f"Shard {shard} is not whole: {blocks} blocks were written, its last are {ends}.")
    stats: Counter[str] = Counter()
    for piece in ordered:
        stats.update(piece.stats)
    sealed = SealedShard(
        shard=shard,
        results=_join_files(files, f"{folder}/{shard:05d}.results", [piece.results for piece in ordered]),
        errors=_join_files(
            files, f"{folder}/{shard:05d}.errors", [piece.errors for piece in ordered if piece.errors]
        ),
        predictions=sum(piece.predictions for piece in ordered),
        stats=dict(stats),
        header=common_header(ordered),
    )
    files.write(_sealed_name(folder, shard), msgspec.json.encode(sealed))
    return sealed


def read_sealed(files: FileStore, folder: str, shards: int) -> list[SealedShard]:
    """What was sealed of an attempt. Raises NotFound when a shard is missing."""
    return [
        msgspec.json.decode(files.read(_sealed_name(folder, shard)), type=SealedShard)
        for shard in range(shards)
    ]


def common_header(parts: Iterable[ShardPiece | SealedShard]) -> tuple[str, ...]:
    """The names of the columns of all parts that have rows. Raises InvalidOutputs when they differ."""
    header: tuple[str, ...] = ()
    for part in parts:
        header = _require_same_header(header, part.header) if part.header else header
    return header


def _sealed_name(folder: str, shard: int) -> str:
    return f"{folder}/sealed/{shard:05d}.json"


def _join_files(files: FileStore, name: str, parts: Sequence[str]) -> str:
    if len(parts) < 2:
        return parts[0] if parts else ""
    with files.create(name) as target:
        for part in parts:
            for item in files.glob(part):
                with files.open(item) as source:
                    target.writelines(_read_chunks(source))
    return name


def _read_chunks(source: BinaryIO) -> Iterator[bytes]:
    while data := source.read(1 << 20):
        yield data


def _require_same_header(header: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    if header and header != other:
        raise InvalidOutputs(
            f"The predictions differ in their outputs: {list(header)} and {list(other)}; CSV has the same "
            "columns in each row. Use outputDataFormat JSON."
        )
    return other


def sum_shards(shards: Sequence[SealedShard]) -> tuple[int, Mapping[str, int]]:
    """Predictions of all shards, and their errors by text, the most frequent first."""
    stats: Counter[str] = Counter()
    for shard in shards:
        stats.update(shard.stats)
    return sum(shard.predictions for shard in shards), dict(stats.most_common())
