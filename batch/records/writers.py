"""Write encoded blocks to files, and join the pieces of a shard that several bundles wrote."""

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
from serving.errors import Internal, InvalidOutputs, NotFound

# Distinct error texts that are counted separately, per piece; all others are counted together.
_MOST_REASONS = 1000
_OTHERS = "(other errors)"
_SEALED = "sealed"


class SealedShard(msgspec.Struct, frozen=True):
    """A complete shard: its files in the temporary folder, "" for errors where there are none."""

    shard: int
    results: str
    errors: str
    predictions: int
    stats: dict[str, int]
    header: tuple[str, ...]


class _ErrorLine(msgspec.Struct, frozen=True):
    """A line of an errors file: where the record is, why it was rejected, and its first characters."""

    file: str
    offset: int
    reason: str
    snippet: str


class PieceWriter:
    """Writes the blocks of one shard in one bundle, in order."""

    def __init__(self, files: FileStore, folder: str, shard: int, first: int) -> None:
        # A unique name: a bundle may be repeated, and only one of its attempts counts.
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
        self._results.write(block.results)
        self._predictions += block.predictions
        self._blocks += 1
        self._end = block.index if block.last else self._end
        if block.header:
            self._header = _require_same_header(self._header, block.header)
        if block.rejected:
            self._add_errors(block)

    def close(self) -> ShardPiece:
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
        error = Internal("The bundle was aborted.")
        self._open.__exit__(type(error), error, None)

    def _add_errors(self, block: EncodedBlock) -> None:
        if self._errors is None:
            self._errors = self._create_file(self._errors_name)
        for rejected in block.rejected:
            line = _ErrorLine(block.file, rejected.offset, rejected.reason, rejected.snippet)
            self._errors.write(msgspec.json.encode(line) + b"\n")
            known = rejected.reason in self._stats or len(self._stats) < _MOST_REASONS
            self._stats[rejected.reason if known else _OTHERS] += 1

    def _create_file(self, uri: str) -> BinaryIO:
        created: AbstractContextManager[BinaryIO] = self._files.create(uri)
        return self._open.enter_context(created)


def seal_shard(files: FileStore, folder: str, shard: int, pieces: Iterable[ShardPiece]) -> SealedShard:
    """Join the pieces of a shard, and record that it is complete. Raises Internal if a block is missing."""
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


def read_sealed_shards(files: FileStore, folder: str, shards: int) -> list[SealedShard]:
    """All shards of a job. Raises NotFound when one is missing."""
    return [_read_sealed_shard(files, _sealed_name(folder, shard)) for shard in range(shards)]


def is_sealed(files: FileStore, folder: str, shard: int) -> bool:
    """Whether an earlier run of the pipeline has finished a shard."""
    try:
        files.read(_sealed_name(folder, shard))
    except NotFound:
        return False
    return True


class SealedShards:
    """The shards that are finished so far, each read once."""

    def __init__(self, files: FileStore, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._known: dict[str, SealedShard] = {}

    def list_shards(self) -> Sequence[SealedShard]:
        """All that are there now. Raises a ServingError or OSError."""
        try:
            names = [item.uri for item in self._files.glob(f"{self._folder}/{_SEALED}/*")]
        except NotFound:
            names = []
        for name in names:
            if name not in self._known:
                self._known[name] = _read_sealed_shard(self._files, name)
        return list(self._known.values())


def common_header(parts: Iterable[ShardPiece | SealedShard]) -> tuple[str, ...]:
    """The column names of all parts with rows. Raises InvalidOutputs when they differ."""
    header: tuple[str, ...] = ()
    for part in parts:
        header = _require_same_header(header, part.header) if part.header else header
    return header


def _sealed_name(folder: str, shard: int) -> str:
    return f"{folder}/{_SEALED}/{shard:05d}.json"


def _read_sealed_shard(files: FileStore, name: str) -> SealedShard:
    return msgspec.json.decode(files.read(name), type=SealedShard)


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
    """The number of predictions, and the errors counted by text, the most frequent first."""
    stats: Counter[str] = Counter()
    for shard in shards:
        stats.update(shard.stats)
    return sum(shard.predictions for shard in shards), dict(stats.most_common())
