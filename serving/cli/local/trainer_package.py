"""Builds the wheel of a training program, and puts archives where the server finds them."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from serving.artifacts import packages
from serving.cli.local.source_tree import copy_source_tree
from serving.errors import InvalidArgument

_BUILD_SCRIPTS = ("setup.py", "pyproject.toml")
_PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "0.0.0"
[tool.setuptools]
packages = [{packages}]
include-package-data = true
"""


@contextmanager
def build_trainer_wheel(package: Path, *, leave_out: Path | None = None) -> Iterator[Path]:
    """Build the wheel of a package's folder, for the length of the block; nothing is written beside it.

    What builds it stands in the parent folder (setup.py, pyproject.toml) and finds all of that, but for the
    folder `leave_out`; where nothing does, the package alone is the wheel. Raises InvalidArgument for what is
    no package, or has too much beside it, and LoadFailed.
    """
    package = package.absolute()
    if not (package / "__init__.py").is_file():
        raise InvalidArgument(f"--package-path: {package} is no package, as it has no __init__.py.")
    with tempfile.TemporaryDirectory(prefix="pilotlight-") as folder:
        source = Path(folder, "source")
        _copy_source(package, source, leave_out)
        yield packages.build_wheel(source, Path(folder, "wheel"))


def upload_archives(archives: Sequence[str | Path], target: str) -> list[str]:
    """Copy archives of this machine below `target`, by their content; URIs stay. Returns all as URIs."""
    files = [Path(one) for one in archives if "://" not in str(one)]
    for file in files:
        if not file.is_file():
            raise InvalidArgument(f"There is no archive {file}.")
    digest = hashlib.sha256(
        b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)
    ).hexdigest()
    folder = f"{target.rstrip('/')}/{digest}"
    return [
        str(one) if "://" in str(one) else _copy_archive(Path(one), f"{folder}/{Path(one).name}")
        for one in archives
    ]


def _copy_source(package: Path, source: Path, leave_out: Path | None) -> None:
    parent = package.parent
    if any((parent / name).is_file() for name in _BUILD_SCRIPTS):
        copy_source_tree(parent, source, keep=package, leave_out=leave_out)
        return
    copy_source_tree(package, source / package.name, keep=package, leave_out=leave_out)
    found = {path.parent.relative_to(source) for path in (source / package.name).rglob("__init__.py")}
    names = ", ".join(sorted(f'"{".".join(path.parts)}"' for path in found))
    (source / "pyproject.toml").write_text(_PROJECT.format(name=package.name, packages=names))


def _copy_archive(file: Path, uri: str) -> str:
    if "://" not in uri:
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, uri)
        return uri
    from serving.artifacts.storage.file_store import FileStore  # noqa: PLC0415  start-up time

    FileStore().write(uri, file.read_bytes())
    return uri
