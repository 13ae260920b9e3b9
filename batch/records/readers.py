"""Splits as blocks of records: lines, gzip lines, TFRecord files."""

from __future__ import annotations

import gzip
import io
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO

import google_crc32c

from batch.records.blocks import RecordBlock
from batch.records.input_shards import LINES, Shard, Split, is_compressed
from serving.artifacts.storage import FileStore
from serving.errors import InvalidArgument

BLOCK_BYTES = 1 << 20
# No record of a prediction job is longer; without a bound, a file without line ends would fill the memory.
MAX_RECORD = 256 << 20

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_LENGTH, _CHECKSUM_LENGTH = 8, 4


def read_shard(files: FileStore, shard: Shard, data_format: str) -> Iterator[RecordBlock]:
    """The blocks of a shard, the last one empty. Raises InvalidArgument and errors of `FileStore.open`."""
    index = 0
    for split in shard.splits:
        for block in _read_split(files, split, data_format):
            yield replace(block, shard=shard.index, index=index)
            index += 1
    yield RecordBlock(shard.index, index, last=True)


def _read_split(files: FileStore, split: Split, data_format: str) -> Iterator[RecordBlock]:
    compressed = is_compressed(split.item, data_format)
    start = split.start
    if start and not compressed:
        # From one byte before, to see whether a line begins here.
        start -= 1
    with files.open(split.item, start) as stored:
        source = _CountingFile(stored)
        if compressed:
            content: BinaryIO = gzip.GzipFile(fileobj=source)  # type: ignore[assignment]
        else:
            content = source  # type: ignore[assignment]
        read_format = _read_lines if data_format in LINES else _read_tf_records
        taken = 0
        begun = time.time()
        try:
            for block in read_format(content, split, split.item.uri):
                yield replace(block, stored_bytes=source.count - taken, begun=begun)
                taken, begun = source.count, time.time()
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InvalidArgument(
                f"{split.item.uri} is not a whole gzip file: {error}. Write it anew; a file that is not "
                "compressed must not be called .gz, nor is its dataFormat TF_RECORD_GZIP."
            ) from error


class _CountingFile(io.RawIOBase):
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        data = self._file.read(-1 if size is None else size)
        self.count += len(data)
        return data


# ---- lines


def _read_lines(content: BinaryIO, split: Split, uri: str) -> Iterator[RecordBlock]:
    """Blocks of whole lines that begin in the split's range."""
    # Grows in place: a line may be MAX_RECORD long.
    offset, rest = split.start, bytearray()
    if split.start:
        skipped = _skip_line(content)
        if skipped is None:
            return
        passed, begun = skipped
        rest += begun
        offset = split.start - 1 + passed
    end = split.end
    while end is None or offset < end:
        data = content.read(BLOCK_BYTES)
        if offset == 0 and not rest:
            _check_start(data, uri)
            if data.startswith(_BOM):
                offset, data = len(_BOM), data[len(_BOM) :]
                # The first line belongs to the first split, though its text may begin after that.
                end = None if end is None else max(end, offset + 1)
        rest += data
        if not data:
            if rest:
                yield _line_block(uri, offset, _clip_lines(bytes(rest), offset, end))
            return
        cut = rest.rfind(b"\n", len(rest) - len(data)) + 1
        if not cut:
            _check_length(len(rest), uri, offset)
            continue
        with memoryview(rest) as view:
            lines = _clip_lines(bytes(view[:cut]), offset, end)
        del rest[:cut]
        yield _line_block(uri, offset, lines)
        offset += len(lines)


def _skip_line(content: BinaryIO) -> tuple[int, bytes] | None:
    """Skip a line: how many bytes that were, and what was read beyond; None without a line end."""
    passed = 0
    while data := content.read(BLOCK_BYTES):
        found = data.find(b"\n")
        if found >= 0:
            return passed + found + 1, data[found + 1 :]
        passed += len(data)
    return None


def _clip_lines(lines: bytes, offset: int, end: int | None) -> bytes:
    if end is None or offset + len(lines) <= end:
        return lines
    # The line with the last byte of the range is the last one.
    stop = lines.find(b"\n", end - offset - 1)
    return lines if stop < 0 else lines[: stop + 1]


def _line_block(uri: str, offset: int, lines: bytes) -> RecordBlock:
    return RecordBlock(0, 0, uri, offset, lines.removesuffix(b"\n"))


def _check_start(data: bytes, uri: str) -> None:
    if data.startswith(_GZIP):
        raise InvalidArgument(f"{uri} is compressed with gzip; give it a name that ends in .gz.")


def _check_length(length: int, uri: str, offset: int) -> None:
    if length > MAX_RECORD:
        raise InvalidArgument(
            f"The record at byte {offset} of {uri} is longer than {MAX_RECORD} bytes. Is it a file of lines?"
        )


# ---- TFRecord: length, its checksum, data, its checksum


def _read_tf_records(content: BinaryIO, _: Split, uri: str) -> Iterator[RecordBlock]:
    """Blocks of records. Format: tensorflow/core/lib/io/record_writer.h."""
    records: list[tuple[int, bytes]] = []
    size = offset = 0
    while (record := _read_tf_record(content, uri, offset)) is not None:
        records.append((offset, record))
        offset += _LENGTH + _CHECKSUM_LENGTH + len(record) + _CHECKSUM_LENGTH
        size += len(record)
        if size >= BLOCK_BYTES:
            yield _record_block(uri, records)
            records, size = [], 0
    if records:
        yield _record_block(uri, records)


def _record_block(uri: str, records: list[tuple[int, bytes]]) -> RecordBlock:
    return RecordBlock(0, 0, uri, records[0][0], records=tuple(records))


def _read_tf_record(content: BinaryIO, uri: str, offset: int) -> bytes | None:
    """The next record, None at the end of the file."""
    take = _exact_reader(content, uri, offset)
    head = content.read(_LENGTH)
    if not head:
        return None
    if len(head) < _LENGTH:
        raise _damaged_error(uri, offset, "it ends in the middle of a record")
    _check_sum(head, take(_CHECKSUM_LENGTH), uri, offset)
    length = int.from_bytes(head, "little")
    _check_length(length, uri, offset)
    record = take(length)
    _check_sum(record, take(_CHECKSUM_LENGTH), uri, offset)
    return record


def _exact_reader(content: BinaryIO, uri: str, offset: int) -> Callable[[int], bytes]:
    def read_exactly(size: int) -> bytes:
        data = content.read(size)
        while len(data) < size and (more := content.read(size - len(data))):
            data += more
        if len(data) < size:
            raise _damaged_error(uri, offset, "it ends in the middle of a record")
        return data

    return read_exactly


def _check_sum(data: bytes, stored: bytes, uri: str, offset: int) -> None:
    found = google_crc32c.value(data)
    masked = (((found >> 15) | (found << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    if masked != int.from_bytes(stored, "little"):
        raise _damaged_error(uri, offset, "a checksum does not match")


def _damaged_error(uri: str, offset: int, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"{uri} is no TFRecord file, or a damaged one: {why} (the record at byte {offset}). Check the "
        "dataFormat: TF_RECORD_GZIP is for compressed ones."
    )
