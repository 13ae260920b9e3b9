from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from serving.errors import InvalidInputs, InvalidOutputs
from serving.node.codecs.npy import from_npy, to_npy

# 2 x 3 numbers as numpy writes them.
GOLDEN = (
    b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    + b" " * 58
    + b"\n\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@"
)


def saved(array: NDArray[Any], **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def loaded(parts: list[bytes | memoryview]) -> NDArray[Any]:
    array: NDArray[Any] = np.load(io.BytesIO(b"".join(parts)), allow_pickle=False)
    return array


def file(header: str, content: bytes = b"", version: int = 1) -> bytes:
    """A file with any header."""
    told = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + told + header.encode() + content


DTYPES = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def test_a_golden_file() -> None:
    """Byte for byte, both ways; its numbers are where they came."""
    array = from_npy(GOLDEN)

    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.dtype == np.float32
    assert np.shares_memory(array, np.frombuffer(GOLDEN, np.uint8))
    assert from_npy(bytearray(GOLDEN)).tolist() == array.tolist()
    written = b"".join(to_npy({"y": array}))
    assert written == saved(array)
    assert len(written) % 64 == array.nbytes


@given(npst.arrays(DTYPES, SHAPES), st.booleans())
def test_whatever_numpy_saves_is_read(array: NDArray[Any], in_columns: bool) -> None:
    """In any order of bytes and of rows."""
    array = np.asfortranarray(array).reshape(array.shape, order="F") if in_columns else array

    read = from_npy(saved(array))

    assert read.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(read, array)


@given(npst.arrays(DTYPES, SHAPES))
def test_whatever_is_written_numpy_loads(array: NDArray[Any]) -> None:
    """Without pickles."""
    read = loaded(to_npy({"y": array}))

    assert (read.dtype, read.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(read, array)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=5), min_size=1))
def test_texts_are_bytes(texts: list[str]) -> None:
    """Of numpy's texts as of its bytes; a zero byte at the end is not theirs to keep."""
    texts = [text.rstrip("\0") for text in texts]
    read = from_npy(saved(np.array(texts)))

    assert read.tolist() == [text.encode() for text in texts]
    assert from_npy(saved(np.array([b"a", b"bc"]))).tolist() == [b"a", b"bc"]
    assert loaded(to_npy({"y": read})).tolist() == texts


def test_what_is_no_text_stays_bytes() -> None:
    """And what numpy would shorten is refused."""
    assert loaded(to_npy({"y": np.array([b"\xff", b"a"], object)})).tolist() == [b"\xff", b"a"]
    with pytest.raises(InvalidOutputs, match="Output y has a text that ends with a zero byte"):
        to_npy({"y": np.array([b"a\0"], object)})


def test_texts_are_not_made_as_long_as_the_longest_at_any_price() -> None:
    """The array would have many times their bytes."""
    texts = np.array([b"a"] * 100 + [b"x" * 300_000], object)
    with pytest.raises(InvalidOutputs, match="101 texts, one of them of 300000 bytes"):
        to_npy({"y": texts})
    alike = np.array([b"x" * 300_000] * 101, object)
    assert loaded(to_npy({"y": alike})).dtype == "<U300000"


def test_several_outputs_are_fields_of_records() -> None:
    """A record per row; numpy's own reader takes names of any letters."""
    scores = np.arange(6, dtype=np.float32).reshape(2, 3)
    read = loaded(to_npy({"scores": scores, "größe": np.array([b"s", b"m"], object)}))

    assert read.dtype.names == ("scores", "größe")
    np.testing.assert_array_equal(read["scores"], scores)
    assert read["größe"].tolist() == ["s", "m"]
    with pytest.raises(InvalidOutputs, match="The outputs a, b do not go into one array"):
        to_npy({"a": scores, "b": scores[:1]})
    with pytest.raises(InvalidOutputs, match="do not go into one array"):
        to_npy({"a": scores, "b": np.float32(1) * np.ones(())})


PLAIN = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"


@pytest.mark.parametrize(
    "header",
    [
        PLAIN,
        PLAIN + "     \n",
        '{"shape":(1,),"descr":"<f4","fortran_order":False}',
        "{ 'fortran_order' : True , 'shape': ( 1 , ) , 'descr': '<f4' }",
    ],
)
def test_other_writers_headers_are_read(header: str) -> None:
    """In any order, with any spaces; and of every version of the format."""
    for version in (1, 2, 3):
        assert from_npy(file(header, b"\0\0\x80?", version)).tolist() == [1.0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "does not begin like one"),
        (b'{"instances": [1]}', "does not begin like one"),
        (b"PK\x03\x04", "does not begin like one"),
        (b"\x93NUMPY", "unknown version"),
        (b"\x93NUMPY\x04\x00", "unknown version"),
        (b"\x93NUMPY\x01\x00", "a header of 0 bytes|cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff", "a header of 65535 bytes"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 99, "a header of 4294967295 bytes"),
        (file(""), "cannot be read"),
        (file("{"), "cannot be read"),
        (file("{}"), "cannot be read"),
        (file(PLAIN + "x", b"1234"), "cannot be read"),
        (file("(" * 9000), "cannot be read"),
        (file("{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': ()}"), "cannot be read"),
        (file(PLAIN, b"123"), "has 3 bytes; float32 of shape \\[1\\] takes 4"),
        (file(PLAIN, b"12345"), "has 5 bytes"),
        (file("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999)}"), "takes 3999"),
        (file(PLAIN.replace("1,", "1," * 40), b"1234"), "40 dimensions"),
        (file(PLAIN.replace("1,", f"0, {2**62}, 4,")), "array is too big"),
        (file(PLAIN.replace("1", "9" * 5000)), "a size of 5000 digits"),
        (file(PLAIN.replace("1", ", ".join(["9" * 4000] * 2))), "a size of 4000 digits"),
        (file("{'descr': '<f3', 'fortran_order': False, 'shape': ()}"), "type '<f3'"),
        (file("{'descr': '<M8[s]', 'fortran_order': False, 'shape': ()}"), "type '<M8\\[s\\]'"),
        (file("{'descr': '|S0', 'fortran_order': False, 'shape': (9,)}"), "type '\\|S0'"),
        (file("{'descr': '|V4', 'fortran_order': False, 'shape': ()}", b"1234"), "type '\\|V4'"),
        (saved(np.array([{}], object), allow_pickle=True), "of Python objects: only numbers"),
        (saved(np.zeros(1, [("a", "f4")])), "of records: only numbers"),
        (file(PLAIN.replace("f4", "U1"), b"\xff\xff\xff\xff"), "a string that is not valid Unicode"),
        (file(PLAIN.replace("f4", "U1"), b"\0\xd8\0\0"), "a string that is not valid Unicode"),
    ],
)  # fmt: skip
def test_what_is_no_array_is_told(body: bytes, message: str) -> None:
    """In words; nothing of it is run, and no more memory is taken than there are bytes."""
    with pytest.raises(InvalidInputs, match=message):
        from_npy(body)


@given(st.binary(max_size=200), st.integers(0, len(GOLDEN)), st.binary(max_size=3))
def test_any_bytes_are_an_array_or_refused(noise: bytes, at: int, change: bytes) -> None:
    """However little of a file is damaged."""
    for body in (noise, GOLDEN[:10] + noise, GOLDEN[:at] + change + GOLDEN[at + len(change) :], GOLDEN[:at]):
        try:
            assert from_npy(body).nbytes <= len(body)
        except InvalidInputs as error:
            assert "request body" in error.message
