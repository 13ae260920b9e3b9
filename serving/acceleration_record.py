"""The result of verifying a version's accelerated strategies, as a file beside its model.

A node reads it at its start, the gateway shows it. A damaged record, or one for other libraries or another
processor, counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import tempfile
import zlib
from functools import lru_cache
from pathlib import Path

import msgspec

RECORD_FILE = "verdict.json"
PLAIN_STRATEGY = "plain"

_LIBRARIES = ("pilotlight", "numpy", "scikit-learn", "xgboost", "treelite", "tensorflow")
_CHUNK_BYTES = 1 << 20


class AccelerationKey(msgspec.Struct, frozen=True):
    """What a record is valid for: the model's digest, the libraries' versions, the processor."""

    digest: str
    libraries: str
    processor: str


class CandidateOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An accelerated strategy that was tried, and why it was `refused`, "" if it was proven.

    `form` is the file of the converted model, "" if there is none, and `checksum` its CRC-32.
    """

    name: str
    refused: str = ""
    form: str = ""
    checksum: int = 0


class RowRange(msgspec.Struct, frozen=True, kw_only=True):
    """The strategy (`way`) for calls of at least `rows` rows, up to the next range.

    `seconds` is what such a call took, `plain_seconds` what it took without acceleration.
    """

    rows: int
    way: str
    seconds: float
    plain_seconds: float


class AccelerationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a verification found.

    `ranges` are ordered by rows; none: every call is plain. `failure` is why there was no verification, or
    why it ended early; `withdrawn` which live request disproved it. `spread` is how much the library differs
    from itself, by output; `seconds` how long the verification took.
    """

    key: AccelerationKey
    tried: tuple[CandidateOutcome, ...] = ()
    ranges: tuple[RowRange, ...] = ()
    failure: str = ""
    withdrawn: str = ""
    spread: dict[str, float] = {}
    seconds: float = 0.0

    @property
    def is_accelerated(self) -> bool:
        """Whether any call uses another strategy than the plain one."""
        return not self.withdrawn and any(one.way != PLAIN_STRATEGY for one in self.ranges)


class _ChecksummedRecord(msgspec.Struct):
    """A record with the CRC-32 of its JSON: half a record may be valid JSON too."""

    checksum: int
    verdict: msgspec.Raw


class DamagedRecordError(Exception):
    """A file is damaged; the message names it."""


def write_record(folder: Path, record: AccelerationRecord) -> None:
    """Write a record atomically. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(record)
    sealed = msgspec.json.encode(_ChecksummedRecord(zlib.crc32(text), msgspec.Raw(text)))
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{RECORD_FILE}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(sealed)
        Path(name).replace(folder / RECORD_FILE)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def read_record(folder: Path) -> AccelerationRecord | None:
    """The record in a folder, None if there is none. Raises DamagedRecordError."""
    file = folder / RECORD_FILE
    try:
        sealed = msgspec.json.decode(file.read_bytes(), type=_ChecksummedRecord)
        if zlib.crc32(bytes(sealed.verdict)) != sealed.checksum:
            raise DamagedRecordError(f"{file} is damaged.")
        return msgspec.json.decode(sealed.verdict, type=AccelerationRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedRecordError(f"{file} cannot be read: {error}") from error


def withdraw_acceleration(folder: Path, reason: str) -> None:
    """Record that a live request disproved a strategy. Raises OSError and DamagedRecordError."""
    record = read_record(folder)
    if record is not None and not record.withdrawn:
        write_record(folder, msgspec.structs.replace(record, withdrawn=reason))


def compute_crc32(file: Path) -> int:
    """The CRC-32 of a file. Raises OSError."""
    found = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            found = zlib.crc32(chunk, found)
    return found


@lru_cache
def describe_libraries() -> str:
    """The libraries that records depend on, with their versions."""
    found = []
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name}={importlib.metadata.version(name)}")
    return " ".join(found)


@lru_cache
def describe_processor() -> str:
    """This machine's processor: its model, and a digest of its feature flags."""
    lines: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            lines.setdefault(name.strip(), value.strip())
    model = lines.get("model name") or platform.processor() or platform.machine()
    abilities = lines.get("flags") or lines.get("Features") or ""
    return f"{model} {zlib.crc32(abilities.encode()):08x}"


def digest_folder(folder: Path) -> str:
    """A digest of the files in a folder, names included. Raises OSError."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    found.update(chunk)
    return found.hexdigest()
