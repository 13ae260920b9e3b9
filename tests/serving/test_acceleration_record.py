"""serving.acceleration_record"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serving import acceleration_record
from serving.acceleration_record import (
    PLAIN_STRATEGY,
    AccelerationKey,
    AccelerationRecord,
    CandidateOutcome,
    DamagedRecordError,
    RowRange,
)

KEY = AccelerationKey("digest", "libraries", "processor")
VERDICT = AccelerationRecord(
    key=KEY,
    tried=(
        CandidateOutcome(name="one", form="form-0", checksum=7),
        CandidateOutcome(name="two", refused="it differs"),
    ),
    ranges=(RowRange(rows=1, way="one", seconds=1e-5, plain_seconds=1e-4),),
    spread={"": 1e-9},
    seconds=0.1,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    acceleration_record.write_record(tmp_path / "new", VERDICT)

    assert acceleration_record.read_record(tmp_path / "new") == VERDICT
    assert [file.name for file in (tmp_path / "new").iterdir()] == [acceleration_record.RECORD_FILE]
    assert acceleration_record.read_record(tmp_path / "none") is None


def test_damage_of_any_kind_is_found(tmp_path: Path) -> None:
    acceleration_record.write_record(tmp_path, VERDICT)
    file = tmp_path / acceleration_record.RECORD_FILE
    text = file.read_bytes()
    damaged = [
        text[:-5],
        b"",
        b"{}",
        text.replace(b'"rows":1', b'"rows":2'),
        text.replace(b"one", b"\xff\xfe\xfd"),
    ]

    for other in damaged:
        file.write_bytes(other)
        with pytest.raises(DamagedRecordError, match=r"verdict\.json"):
            acceleration_record.read_record(tmp_path)


def test_what_a_model_puts_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    """The server reads it in threads that all versions share."""
    file = tmp_path / acceleration_record.RECORD_FILE
    os.mkfifo(file)
    with pytest.raises(DamagedRecordError, match="no regular file"):
        acceleration_record.read_record(tmp_path)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(DamagedRecordError, match="no regular file"):
        acceleration_record.read_record(tmp_path)
    file.unlink()
    file.write_bytes(b'{"x":' + b"[" * 100_000)
    with pytest.raises(DamagedRecordError):
        acceleration_record.read_record(tmp_path)


def test_what_is_withdrawn_stays_so(tmp_path: Path) -> None:
    acceleration_record.write_record(tmp_path, VERDICT)
    acceleration_record.withdraw_acceleration(tmp_path, "row 3")
    acceleration_record.withdraw_acceleration(tmp_path, "row 4")
    found = acceleration_record.read_record(tmp_path)

    assert found is not None
    assert found.withdrawn == "row 3"
    assert VERDICT.is_accelerated
    assert not found.is_accelerated


def test_ranges_that_are_all_plain_accelerate_nothing() -> None:
    plain = RowRange(rows=1, way=PLAIN_STRATEGY, seconds=1.0, plain_seconds=1.0)

    assert not AccelerationRecord(key=KEY, ranges=(plain,)).is_accelerated


def test_a_digest_is_that_of_names_and_contents(tmp_path: Path) -> None:
    digests = set()
    for name, content in (("a", "1"), ("a", "2"), ("b", "1")):
        folder = tmp_path / f"{name}{content}"
        folder.mkdir()
        (folder / name).write_text(content)
        digests.add(acceleration_record.digest_folder(folder))
    (tmp_path / "same").mkdir()
    (tmp_path / "same" / "a").write_text("1")

    assert len(digests) == 3
    assert acceleration_record.digest_folder(tmp_path / "same") in digests


def test_what_was_prepared_is_no_part_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_text("1")
    before = acceleration_record.digest_folder(tmp_path)
    acceleration_record.write_record(tmp_path / acceleration_record.PREPARED_FOLDER, VERDICT)

    assert acceleration_record.digest_folder(tmp_path) == before


def test_a_withdrawal_of_a_record_from_elsewhere_is_written_here(tmp_path: Path) -> None:
    acceleration_record.withdraw_acceleration(tmp_path, "row 3", VERDICT)
    found = acceleration_record.read_record(tmp_path)

    assert found is not None
    assert (found.key, found.withdrawn) == (KEY, "row 3")


def test_a_mismatch_is_told_in_words() -> None:
    other = AccelerationKey("digest", "others", "another")

    assert KEY.describe_mismatch(KEY) == ""
    assert KEY.describe_mismatch(other) == "other versions of libraries or code and another kind of processor"


@pytest.mark.parametrize(
    ("name", "value", "is_same"),
    [
        ("model name", "Another Model", True),
        ("flags", "avx2 fma md_clear sse2 smep fpu", True),
        ("flags", "avx2 sse2", False),
        ("flags", "avx2 avx512f fma sse2", False),
        ("vendor_id", "AuthenticAMD", False),
    ],
)
def test_a_kind_of_processor_is_what_changes_numbers(name: str, value: str, is_same: bool) -> None:
    lines = {"vendor_id": "GenuineIntel", "model name": "Some Model", "flags": "fma sse2 avx2"}
    found = acceleration_record.render_processor({**lines, name: value}, "x86_64")

    assert (found == acceleration_record.render_processor(lines, "x86_64")) is is_same


def test_the_libraries_and_the_processor_are_known() -> None:
    assert {part.partition("=")[0] for part in acceleration_record.describe_libraries().split()} >= {
        "code",
        "numpy",
        "python",
        "treelite",
        "xgboost",
    }
    assert acceleration_record.describe_processor() == acceleration_record.describe_processor() != ""
