"""Package archives that cannot be installed, each with words of what its owner is told."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.serving.artifacts.test_packages import sdist

Build = Callable[[Path], Path]
SETUP = {"user-0.1/setup.py": "from setuptools import setup\nsetup(name='user', version='0.1')\n"}
WHEEL = "user-1.0-py3-none-any.whl"
INFO = "user-1.0.dist-info"
WHEEL_FILES = {
    "user.py": "",
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: user\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/RECORD": "",
}
# Of a file that says to be larger than it is.
HUGE = 1 << 40


def content(name: str, data: bytes) -> Build:
    def build(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return build


def tar(files: Mapping[str, str], mode: Any = "w:gz", **special: Mapping[str, Any]) -> Build:
    """A source archive; `special` are attributes of further members, by a name of no meaning."""

    def build(folder: Path) -> Path:
        path = folder / "user-0.1.tar.gz"
        with tarfile.open(path, mode, format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))
            for attributes in special.values():
                entry = tarfile.TarInfo()
                for key, value in attributes.items():
                    setattr(entry, key, value)
                # Without its content, whatever its size.
                assert archive.fileobj is not None
                archive.fileobj.write(entry.tobuf(tarfile.GNU_FORMAT))
        return path

    return build


def wheel_of(files: Mapping[str, str], name: str = WHEEL, *, flags: int = 0, size: int = 0) -> Build:
    """A wheel with flags of its first file, and the size that this says to have."""

    def build(folder: Path) -> Path:
        path = folder / name
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
            first = archive.infolist()[0]
            first.flag_bits |= flags
            first.file_size = size or first.file_size
        return path

    return build


def changed(build: Build, change: Callable[[bytes], bytes], name: str = "") -> Build:
    """An archive whose bytes are changed, under another name."""

    def build_changed(folder: Path) -> Path:
        path = build(folder)
        data = change(path.read_bytes())
        path.unlink()
        path = folder / (name or path.name)
        path.write_bytes(data)
        return path

    return build_changed


def with_bad_name(data: bytes) -> bytes:
    """Of a zip archive: one that says to be UTF-8, and is not."""
    return data.replace("näme.py".encode(), b"n\xff\xfeme.py")


def setup_py(setup: str, files: Mapping[str, str] | None = None) -> Build:
    """A source archive whose setup() has these further arguments."""
    return lambda folder: sdist(folder, "user", setup, files)


def without(name: str) -> Mapping[str, str]:
    return {file: text for file, text in WHEEL_FILES.items() if file != name}


def metadata(text: str) -> Mapping[str, str]:
    return {**WHEEL_FILES, f"{INFO}/METADATA": f"Metadata-Version: 2.1\n{text}"}


good_tar = tar(SETUP)
good_wheel = wheel_of(WHEEL_FILES)

# What is told without pip.
DAMAGED: Mapping[str, tuple[Build, str]] = {
    "empty": (content("user-0.1.tar.gz", b""), "it is empty. Copy it again"),
    "module": (content("task.py", b"print()"), "its name ends in none of .whl, .zip, .tar.gz"),
    "semicolon": (changed(good_tar, bytes, "a;b.tar.gz"), "a condition. Rename it."),
    "noise": (content("user-0.1.tar.gz", b"\0\1" * 400), "it is not a gzip file, nor any other archive"),
    "noise as wheel": (content(WHEEL, b"\0\1" * 400), "it is not a zip archive, nor any other archive"),
    "web page": (
        content("user-0.1.tar.gz", b"<!doctype html>"),
        "but a web page, as one that asks to sign in",
    ),
    "zip as tar": (
        changed(good_wheel, bytes, "user-0.1.tar.gz"),
        "it is a zip archive, and its name says that it is a gzip file. Give it the name that fits.",
    ),
    "tar as wheel": (
        changed(good_tar, bytes, WHEEL),
        "it is a gzip file, and its name says that it is a zip",
    ),
    "tar without gzip": (tar(SETUP, "w:"), "it is a tar archive, and its name says that it is a gzip file"),
    "gzip without tar": (
        content("user-0.1.tar.gz", gzip.compress(b"no tar" * 400)),
        "it is damaged, or ends too early",
    ),
    "half": (changed(good_tar, lambda data: data[: len(data) // 2]), "it is damaged, or ends too early"),
    "half a wheel": (changed(good_wheel, lambda data: data[:200]), "it is damaged, or ends too early"),
    "damaged": (
        changed(good_tar, lambda data: data[:40] + bytes(20) + data[60:]),
        "it is damaged, or ends too early",
    ),
    "no file": (tar({}), "there is no file in it. Build it again"),
    "no setup.py": (
        tar({"user-0.1/user/task.py": ""}),
        "there is neither setup.py nor pyproject.toml in user-0.1/. Build it",
    ),
    "too deep": (
        tar({"home/me/user/setup.py": "", "home/me/user/task.py": ""}),
        "in home/. Make an archive of the folder home/me/user.",
    ),
    "two folders": (tar({**SETUP, "data/x": ""}), "in it. Make an archive of the folder user-0.1."),
    "unreadable pyproject": (
        tar({"user-0.1/pyproject.toml": "[project\nname = 3"}),
        "its pyproject.toml cannot be read: ",
    ),
    "absolute": (
        tar({**SETUP, "/etc/cron.d/user": ""}),
        "a file '/etc/cron.d/user', outside of the archive's own",
    ),
    "upwards": (tar({**SETUP, "user-0.1/../../x": ""}), "outside of the archive's own folder"),
    "upwards in a wheel": (wheel_of({**WHEEL_FILES, "../x.py": ""}), "outside of the archive's own folder"),
    "link": (
        tar(SETUP, link={"name": "user-0.1/x", "type": tarfile.SYMTYPE, "linkname": "../../../etc/passwd"}),
        "'user-0.1/x' is a link that leads out of the archive. Put the file itself there.",
    ),
    "absolute link": (
        tar(SETUP, link={"name": "user-0.1/x", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        "is a link that leads out of the archive",
    ),
    "hard link": (
        tar(SETUP, link={"name": "user-0.1/x", "type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}),
        "is a link that leads out of the archive",
    ),
    "pipe": (
        tar(SETUP, pipe={"name": "user-0.1/x", "type": tarfile.FIFOTYPE}),
        "is neither a file nor a folder",
    ),
    "long name": (tar({**SETUP, f"user-0.1/{'x' * 300}": ""}), "the name of a file is too long"),
    "name that is not UTF-8": (
        tar({**SETUP, "user-0.1/user/\udcff.py": ""}),
        r"the name of the module 'user-0.1/user/\udcff.py' is not",
    ),
    "name that says to be UTF-8": (
        changed(wheel_of({**WHEEL_FILES, "näme.py": ""}), with_bad_name),
        "it is damaged, or ends too early",
    ),
    "bomb": (tar(SETUP, data={"name": "user-0.1/x", "size": HUGE}), "there is no room. Leave data out of it"),
    "bomb in a wheel": (wheel_of(WHEEL_FILES, size=HUGE), "there is no room. Leave data out of it"),
    "password": (
        wheel_of(WHEEL_FILES, flags=1),
        "its files are encrypted. Build it again without a password.",
    ),
    "wheel without version": (wheel_of(WHEEL_FILES, "user.whl"), "that is no name of a wheel"),
    "another platform": (
        wheel_of(WHEEL_FILES, "user-1.0-cp27-cp27m-win32.whl"),
        "it is built for cp27-cp27m-win32, and the server",
    ),
    "no wheel": (wheel_of({"user.py": ""}), "it is no wheel: of folders NAME.dist-info there is none in it."),
    "two wheels": (
        wheel_of({**WHEEL_FILES, "other-1.0.dist-info/WHEEL": ""}),
        "other-1.0.dist-info and user-1.0.dist-info",
    ),
    "renamed wheel": (
        wheel_of(WHEEL_FILES, "other-1.0-py3-none-any.whl"),
        "those of user-1.0, and its name says other.",
    ),
    "no record": (wheel_of(without(f"{INFO}/RECORD")), "its folder user-1.0.dist-info lacks RECORD."),
    "another's metadata": (wheel_of(metadata("Name: other\n")), "its METADATA are of 'other'"),
    "requirement": (
        wheel_of(metadata("Name: user\nRequires-Dist: numpy>>1\n")),
        "what it requires, 'numpy>>1', cannot be read",
    ),
    "wheel of the future": (
        wheel_of({**WHEEL_FILES, f"{INFO}/WHEEL": "Wheel-Version: 9.0\n"}),
        "a wheel of version '9.0'",
    ),
}

# What pip, or the program that builds, finds out.
UNBUILDABLE: Mapping[str, tuple[Build, str]] = {
    "raises": (setup_py("**{}[0]"), "KeyError: 0\nIf it builds on your machine, give the wheel instead."),
    "exits": (
        setup_py("**(print('no compiler') or __import__('sys').exit(3))"),
        "the program that builds it ended with exit code 3: no compiler",
    ),
    "is killed": (
        setup_py("**__import__('os').kill(__import__('os').getpid(), 9)"),
        "was ended by signal SIGKILL.",
    ),
    "ends as if all were well": (
        setup_py("**__import__('os')._exit(0)"),
        "its setup.py does not call setup()",
    ),
    "calls nothing": (tar({"user-0.1/setup.py": "print('hello')\n"}), "its setup.py does not call setup()"),
    "is of Python 2": (tar({"user-0.1/setup.py": "print 'hello'\n"}), "SyntaxError: Missing parentheses"),
    "reads what is not there": (
        setup_py("description=open('README.md').read()"),
        "No such file or directory: 'README.md'",
    ),
    "names a folder that is not there": (
        setup_py("packages=['nowhere']"),
        "error: package directory 'nowhere' does not exist",
    ),
    "wants another Python": (setup_py("python_requires='<3'"), "requires a different Python"),
    "wants another tool": (
        setup_py("", {"pyproject.toml": "[build-system]\nrequires=[]\nbuild-backend='absent'\n"}),
        "named 'absent'",
    ),
}
