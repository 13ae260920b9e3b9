"""The result of verifying a version's accelerated strategies, as a file beside its model.

A node reads it at its start, the gateway shows it. A damaged record, or one for other files, other libraries,
other code or another kind of processor, counts as none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import os
import platform
import re
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from serving.frameworks import load_frameworks

RECORD_FILE = "verdict.json"
PLAIN_STRATEGY = "plain"
PREPARED_FOLDER = ".pilotlight"
"""Where `pilotlight prepare` writes in a model's folder; what is in it is no part of the model."""

# The code that computes predictions or verifies how; a checkout changes without a new version.
_CODE_FOLDERS = ("acceleration", "runtimes")
# Instruction sets that numeric libraries choose their kernels by.
_NUMERIC_FEATURES = re.compile(r"s?sse.*|avx.*|fma.*|f16c|bmi\d|amx.*|neon|asimd.*|fphp|sve.*|sme2?|bf16")
_CHUNK_BYTES, _MOST_FILE_BYTES = 1 << 20, 64 << 20


class AccelerationKey(msgspec.Struct, frozen=True):
    """What a record is valid for: the model's digest, the versions of libraries and code, the processor."""

    digest: str
    libraries: str
    processor: str

    def describe_mismatch(self, other: AccelerationKey) -> str:
        """What another key differs in, in words; "" for an equal one."""
        parts = {
            "digest": "other model files",
            "libraries": "other versions of libraries or code",
            "processor": "another kind of processor",
        }
        return " and ".join(
            text for name, text in parts.items() if getattr(self, name) != getattr(other, name)
        )


class RecordLocation(msgspec.Struct, frozen=True):
    """The folder of a model's acceleration record, and the key that the record must match.

    `prepared` is a folder that `pilotlight prepare` wrote, "" for none: it is only read, and its record
    counts where `folder` has none.
    """

    folder: str
    key: AccelerationKey
    prepared: str = ""


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


class BatchingFinding(msgspec.Struct, frozen=True):
    """Whether requests may share calls, and why; `max_rows` limits a call, None: any number."""

    merge: bool
    reason: str
    max_rows: int | None = None


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
    batching: BatchingFinding | None = None

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
        sealed = msgspec.json.decode(read_small_file(file), type=_ChecksummedRecord)
        if zlib.crc32(bytes(sealed.verdict)) != sealed.checksum:
            raise DamagedRecordError(f"{file} is damaged.")
        return msgspec.json.decode(sealed.verdict, type=AccelerationRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedRecordError(f"{file} cannot be read: {error}") from error


def read_small_file(file: Path) -> bytes:
    """Read a file that code of a model can replace: a pipe is not waited for, a device not read for ever.

    Raises OSError.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(file))
        with os.fdopen(descriptor, "rb", closefd=False) as opened:
            return opened.read(_MOST_FILE_BYTES)
    finally:
        os.close(descriptor)


def withdraw_acceleration(folder: Path, reason: str, used: AccelerationRecord | None = None) -> None:
    """Record that a live request disproved a strategy. Raises OSError and DamagedRecordError.

    `used` is the record to write where the folder has none: the one of a folder that is not written to.
    """
    record = read_record(folder) or used
    if record is not None and not record.withdrawn:
        write_record(folder, msgspec.structs.replace(record, withdrawn=reason))


def without_forms(record: AccelerationRecord) -> AccelerationRecord:
    """The same without converted models: each is made of the model itself where it is used."""
    tried = tuple(CandidateOutcome(name=one.name, refused=one.refused) for one in record.tried)
    return msgspec.structs.replace(record, tried=tried)


def compute_crc32(file: Path) -> int:
    """The CRC-32 of a file. Raises OSError."""
    found = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            found = zlib.crc32(chunk, found)
    return found


@lru_cache
def describe_libraries() -> str:
    """The libraries that records depend on with their versions, and a digest of our code."""
    found = [f"python={platform.python_version()}"]
    for name in ("pilotlight", "numpy", "scipy", *_list_framework_distributions()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name}={importlib.metadata.version(name)}")
    return " ".join((*found, f"code={_digest_code():08x}"))


def _digest_code() -> int:
    """The CRC-32 of the sources that a record depends on."""
    here, found = Path(__file__).parent, 0
    for folder in _CODE_FOLDERS:
        for file in sorted((here / folder).rglob("*.py")):
            found = zlib.crc32(file.read_bytes(), found)
    return found


def _list_framework_distributions() -> Iterator[str]:
    """Those that compute models."""
    for framework in load_frameworks().values():
        yield from framework.distributions[:1]
        yield from framework.accelerators


@lru_cache
def describe_processor() -> str:
    """The kind of processor that this machine has: vendor, and the features that change how numbers are
    computed. Models of a kind differ in speed, not in answers."""
    lines: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            lines.setdefault(name.strip(), value.strip())
    return render_processor(lines, platform.machine())


def render_processor(lines: Mapping[str, str], machine: str) -> str:
    """The same from the lines of /proc/cpuinfo."""
    vendor = lines.get("vendor_id") or lines.get("CPU implementer") or "unknown"
    features = (lines.get("flags") or lines.get("Features") or "").split()
    numeric = sorted(name for name in features if _NUMERIC_FEATURES.fullmatch(name))
    return " ".join((machine, vendor, *numeric))


def digest_folder(folder: Path) -> str:
    """A digest of the files in a folder, names included, without what was prepared. Raises OSError."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if name.parts[0] != PREPARED_FOLDER and file.is_file():
            found.update(f"{name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    found.update(chunk)
    return found.hexdigest()
