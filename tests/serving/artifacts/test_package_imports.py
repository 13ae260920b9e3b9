"""Which framework packages need, by their texts."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from serving.artifacts.package_imports import find_archive_framework, find_imported_framework

IMPORT = {"trainer/task.py": "import os\nimport tensorflow as tf\n"}


def write_wheel(path: Path, texts: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return path


def write_tar(path: Path, texts: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def find_name(*archives: Path) -> str:
    found = find_archive_framework(map(str, archives))
    return "" if found is None else found.name


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("import tensorflow as tf", True),
        ("    from tensorflow.keras import layers", True),
        ("import numpy as np, os.path , keras", True),
        ("import tensorflow_text", True),
        ("import tf_keras", True),
        ("# import tensorflow", False),
        ("import my.tensorflow", False),
        ("from mine import tensorflow", False),
        ("import kerasify", False),
        ("print('tensorflow')", False),
    ],
)
def test_imports_of_tensorflow_are_seen(tmp_path: Path, line: str, wanted: bool) -> None:
    """At the start of a line, however deep: told from the text, since nothing of it is run."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text(f"import os\n{line}\n")

    found = find_imported_framework(tmp_path)

    assert (found is not None and found.name == "TENSORFLOW") is wanted


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (IMPORT, "TENSORFLOW"),
        (
            {"trainer-0.1.dist-info/METADATA": "Name: trainer\nRequires-Dist: TensorFlow (>=2)\n"},
            "TENSORFLOW",
        ),
        ({"trainer-0.1/requirements.txt": "numpy\nkeras==3.1\n"}, "TENSORFLOW"),
        ({"trainer/task.py": "import xgboost, sklearn\n", "trainer/data.csv": "import tensorflow\n"}, ""),
        ({"trainer-0.1.dist-info/METADATA": "Summary: tensorflow is not needed\n"}, ""),
    ],
)
def test_what_archives_need(tmp_path: Path, texts: dict[str, str], found: str) -> None:
    assert find_name(write_wheel(tmp_path / "t-0.1-py3-none-any.whl", texts)) == found
    assert find_name(write_tar(tmp_path / "t-0.1.tar.gz", texts)) == found


def test_archives_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    """Whatever they are: the installation says what is wrong with them."""
    broken, cut, pipe = tmp_path / "broken.whl", tmp_path / "cut.tar.gz", tmp_path / "pipe"
    broken.write_bytes(write_wheel(tmp_path / "w", IMPORT).read_bytes()[40:])
    whole = write_tar(tmp_path / "t", {**IMPORT, "noise": "x" * 99}).read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    os.mkfifo(pipe)

    assert find_name(broken, cut, pipe, tmp_path / "missing", tmp_path) == ""
    assert find_archive_framework(["gs://bucket/trainer-0.1.tar.gz"]) is None
    assert find_name(broken, cut, pipe, write_tar(tmp_path / "good", IMPORT)) == "TENSORFLOW"


def write_links(path: Path, links: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def corrupt(wheel: Path, place: int, data: bytes) -> Path:
    """Write over a part of a wheel's only file."""
    content = bytearray(wheel.read_bytes())
    content[place : place + len(data)] = data
    wheel.write_bytes(content)
    return wheel


def test_contents_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    """Each raises an error of another kind. One that is not caught would keep a job from ever starting."""
    texts = {"task.py": "import tensorflow\n" * 20}
    encrypted = write_wheel(tmp_path / "encrypted.whl", texts)
    # The flags of the file, in the directory of the archive: the first says that a password is needed.
    encrypted = corrupt(encrypted, encrypted.read_bytes().rindex(b"PK\x01\x02") + 8, b"\x01")
    data_begins = 30 + len("task.py")
    deflated = corrupt(write_wheel(tmp_path / "deflated.whl", texts), data_begins, b"\xff" * 8)
    dangling = write_links(tmp_path / "dangling.tar.gz", {"a/task.py": "missing.py"})
    circular = write_links(tmp_path / "circular.tar.gz", {"a/task.py": "other.py", "a/other.py": "task.py"})

    for archive in (encrypted, deflated, dangling, circular):
        assert find_name(archive) == ""


@pytest.mark.parametrize("write", [write_wheel, write_tar])
def test_no_more_than_a_part_of_a_huge_archive_is_unpacked(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    """What comes behind the bound is not seen."""
    padding = {f"{number}.py": " " * (9 << 20) for number in range(4)}

    assert find_name(write(tmp_path / "early", {**IMPORT, **padding})) == "TENSORFLOW"
    assert find_name(write(tmp_path / "late", {**padding, **IMPORT})) == ""
