"""Records and their scalars, in all their encodings."""

from __future__ import annotations

import io
import random
import struct

import pytest

from tests.tuning.metrics.event_writer import (
    frame_record,
    write_event,
    write_field,
    write_tensor_event,
    write_varint,
)
from tuning.metrics.event_records import RecordReader, Scalar, parse_scalars


def read_records(content: bytes, budget: int = 1 << 30) -> tuple[list[bytes], int]:
    reader = RecordReader(io.BytesIO(content), len(content), budget)
    return list(reader), reader.consumed


def parse(record: bytes) -> list[Scalar]:
    return parse_scalars(record[12:-4])


def test_a_simple_value_has_step_and_time() -> None:
    assert parse(write_event("loss", 0.5, step=7, time=12.25)) == [Scalar("loss", 7, 0.5, 12.25)]


def test_a_negative_step_is_read() -> None:
    assert parse(write_event("loss", 0.5, step=-1))[0].step == -1


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (b"\x08\x01" + write_field(4, struct.pack("<f", 0.25)), 0.25),
        (b"\x08\x02" + write_field(4, struct.pack("<d", 0.1)), 0.1),
        (b"\x08\x01" + write_field(5, struct.pack("<f", 0.25)), 0.25),
        (b"\x08\x02" + write_field(6, struct.pack("<d", 0.1)), 0.1),
        (b"\x08\x03" + write_field(7, write_varint(-3)), -3.0),
        (b"\x08\x09" + write_field(10, write_varint(5)), 5.0),
        (b"\x08\x09\x50\x05", 5.0),
        (b"\x08\x13" + write_field(4, struct.pack("<e", 1.5)), 1.5),
        (b"\x08\x13" + write_field(13, write_varint(0x3E00)), 1.5),
        (b"\x08\x0e" + write_field(13, write_varint(0x3FC0)), 1.5),
        (b"\x08\x0a" + write_field(11, b"\x01"), 1.0),
    ],
)
def test_a_tensor_with_one_number_is_a_scalar(tensor: bytes, value: float) -> None:
    assert [one.value for one in parse(write_tensor_event("loss", tensor))] == [value]


def test_tensors_of_other_plugins_and_shapes_are_none() -> None:
    one = b"\x08\x01" + write_field(4, struct.pack("<f", 0.25))
    two = b"\x08\x01" + write_field(4, struct.pack("<ff", 0.25, 0.5))

    assert parse(write_tensor_event("image", one, plugin="images")) == []
    assert parse(write_tensor_event("loss", two)) == []
    assert parse(write_tensor_event("loss", b"\x08\x07" + write_field(8, b"text"))) == []


def test_records_end_before_one_that_is_not_whole() -> None:
    first, second = write_event("loss", 1.0), write_event("loss", 2.0)
    for cut in range(1, len(second) + 1):
        records, consumed = read_records(first + second[:-cut])

        assert len(records) == 1
        assert consumed == len(first)


def test_a_record_that_is_too_long_is_passed_over() -> None:
    content = frame_record(bytes(17 << 20)) + write_event("loss", 1.0)
    records, consumed = read_records(content)

    assert len(records) == 1
    assert consumed == len(content)


def test_a_length_that_is_nonsense_ends_the_file() -> None:
    first = write_event("loss", 1.0)

    assert read_records(first + b"\xff" * 100) == ([first[12:-4]], len(first))


def test_a_budget_ends_with_a_whole_record() -> None:
    content = write_event("loss", 1.0) * 10
    records, consumed = read_records(content, budget=len(content) // 2)

    assert len(records) == 5
    assert consumed == len(content) // 2


def test_no_damage_raises() -> None:
    rng = random.Random(5)
    whole = write_event("loss", 0.5, step=7) + write_tensor_event("loss", b"\x08\x02" + bytes(12))
    for _ in range(3000):
        data = bytearray(whole[12:-4])
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        parse_scalars(bytes(data[: rng.randint(0, len(data))]))
