from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from serving.artifacts.packages import (
    InstallResult,
    describe_shadowed_packages,
    install_packages,
    search_path,
)
from serving.errors import LoadFailed
from tests.end_to_end.models import wheel


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index is in reach: the only one named is a port of this machine that nobody listens on."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def sdist(
    folder: Path, name: str, setup: str, files: Mapping[str, str] | None = None, *, version: str = "0.1"
) -> Path:
    """A source archive as `setup.py sdist` makes it; `setup` are the further arguments of setup()."""
    script = f"from setuptools import setup\nsetup(name={name!r}, version={version!r}, {setup})\n"
    path = folder / f"{name}-{version}.tar.gz"
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for file, text in {"setup.py": script, **(files or {})}.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            data = text.encode()
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def imported(target: Path, expression: str, *modules: str) -> str:
    """What `expression` prints in a fresh interpreter that finds the installed packages."""
    script = f"import sys; sys.path += {[str(path) for path in search_path(target)]}\n"
    script += "".join(f"import {module}\n" for module in modules) + f"print({expression})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def installed_here() -> set[str]:
    return {f"{item.metadata['Name']} {item.version}" for item in metadata.distributions()}


def test_a_package_is_installed_without_an_index(tmp_path: Path) -> None:
    """What the server has satisfies a package's needs; only the package itself goes into the target."""
    before = installed_here()
    archive = sdist(
        tmp_path,
        "my-routine",
        "packages=['routine'], install_requires=['numpy>=1.20', 'scikit-learn']",
        {"routine/__init__.py": "import numpy\nANSWER = int(numpy.int64(42))\n"},
    )

    done = install_packages([archive], tmp_path / "target")

    assert done == InstallResult(("my-routine==0.1",), ())
    assert imported(tmp_path / "target", "routine.ANSWER", "routine") == "42"
    assert not (tmp_path / "target/numpy").exists()
    assert installed_here() == before


def test_googles_own_example_works(tmp_path: Path) -> None:
    """Modules listed as `scripts`, as AI Platform's documentation does, are found by `search_path`."""
    archive = sdist(
        tmp_path,
        "my_custom_code",
        "scripts=['predictor.py', 'preprocess.py']",
        {"predictor.py": "import preprocess\nclass MyPredictor: pass\n", "preprocess.py": "SCALE = 2\n"},
    )
    target = tmp_path / "target"

    done = install_packages([archive], target)

    assert done == InstallResult(("my_custom_code==0.1",), ())
    assert search_path(target) == (target, target / "bin")
    assert imported(target, "predictor.MyPredictor.__name__", "predictor") == "MyPredictor"


def test_archives_may_need_each_other(tmp_path: Path) -> None:
    """Several archives are planned together: one may be what another needs."""
    lower = wheel(tmp_path, "lower", "2.0", {"lower.py": "NAME = 'lower'\n"})
    upper = wheel(tmp_path, "upper", "0.1", {"upper.py": "import lower\n"}, requires="lower>=2")

    done = install_packages([upper, lower], tmp_path / "target")

    assert sorted(done.packages) == ["lower==2.0", "upper==0.1"]
    assert imported(tmp_path / "target", "upper.lower.NAME", "upper") == "lower"


def test_missing_requirements_come_from_where_the_operator_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip's own settings are honoured, so that a missing dependency can be had from a folder or an index."""
    wheel(tmp_path / "wheels", "dependency", "1.5", {"dependency.py": ""})
    archive = wheel(tmp_path, "user", "1.0", {"user.py": "import dependency\n"}, requires="dependency<2")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))

    done = install_packages([archive], tmp_path / "target")

    assert sorted(done.packages) == ["dependency==1.5", "user==1.0"]
    assert imported(tmp_path / "target", "user.__name__", "user") == "user"


def test_settings_that_would_install_elsewhere_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the user's site nor another target is written to, whatever pip's settings say."""
    configuration = tmp_path / "pip.conf"
    configuration.write_text("[install]\nuser = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "user"))

    install_packages([wheel(tmp_path, "user", "1.0", {"user.py": ""})], tmp_path / "target")

    assert (tmp_path / "target/user.py").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "user").exists()


def test_what_cannot_be_found_is_named_within_seconds(tmp_path: Path) -> None:
    """With no index in reach, a missing dependency fails fast, and the error names it and the ways out."""
    archive = wheel(tmp_path, "user", "1.0", {"user.py": ""}, requires="nobody-has-this>=2")
    began = time.monotonic()

    with pytest.raises(LoadFailed) as failure:
        install_packages([archive], tmp_path / "target")

    assert time.monotonic() - began < 20
    assert failure.value.detail == (
        "User-provided package user-1.0-py3-none-any.whl failed to install: it needs nobody-has-this>=2 "
        "(from user), which the server does not have and no package index in reach offers. Give an archive "
        "of it too, or let the server reach an index (it reads pip's own settings)."
    )


def test_a_conflict_names_both_versions(tmp_path: Path) -> None:
    """A requirement that the server's version does not meet fails with both."""
    innocent = wheel(tmp_path, "innocent", "1.0", {"innocent.py": ""})
    archive = wheel(tmp_path, "old", "0.1", {"old.py": ""}, requires="numpy<1.0")

    with pytest.raises(LoadFailed) as failure:
        install_packages([innocent, archive], tmp_path / "target")

    assert failure.value.detail == (
        f"User-provided package {archive.name} failed to install: old 0.1 depends on numpy<1.0, but the "
        f"server has numpy {metadata.version('numpy')}."
    )


def test_another_version_of_what_the_server_has_is_a_conflict(tmp_path: Path) -> None:
    """An archive cannot replace one of the server's own packages."""
    archive = wheel(tmp_path, "scikit_learn", "0.20.2", {"sklearn/__init__.py": ""})

    with pytest.raises(LoadFailed) as failure:
        install_packages([archive], tmp_path / "target")

    here = metadata.version("scikit-learn")
    assert f"the package is scikit-learn 0.20.2, but the server has scikit-learn {here}" in str(failure.value)


def test_temporary_files_of_a_build_are_beside_its_target(tmp_path: Path) -> None:
    """A kill leaves nothing anywhere else."""
    said = tmp_path / "said"
    look = f"__import__('pathlib').Path({str(said)!r}).write_text(__import__('tempfile').gettempdir())"
    install_packages([sdist(tmp_path, "user", f"zip_safe=bool({look})")], tmp_path / "version" / "target")

    assert Path(said.read_text()).is_relative_to(tmp_path / "version")
    assert [path.name for path in (tmp_path / "version").iterdir()] == ["target"]


def test_a_hidden_module_is_a_warning(tmp_path: Path) -> None:
    """The server's modules are found first; a package's module of the same name is worth a word."""
    archive = wheel(tmp_path, "user", "1.0", {"json.py": "", "numpy/__init__.py": "", "mine.py": ""})

    found = install_packages([archive], tmp_path / "target")

    assert found.warnings == ()
    assert [text.split(" (")[0] for text in sorted(describe_shadowed_packages([tmp_path / "target"]))] == [
        "The server has a module json of its own",
        "The server has a module numpy of its own",
    ]


def test_a_loaded_module_without_spec_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", ModuleType("mine"))

    install_packages([wheel(tmp_path, "user", "1.0", {"mine.py": ""})], tmp_path / "target")

    assert list(describe_shadowed_packages([tmp_path / "target"])) == []


def test_a_package_without_modules_is_a_warning(tmp_path: Path) -> None:
    """An empty package installs without a murmur; we say so, for its class will not be found."""
    warnings = install_packages([wheel(tmp_path, "empty", "1.0", {})], tmp_path / "target").warnings

    assert warnings == (
        "The packages hold no Python module. Name them in setup.py: py_modules, packages or scripts.",
    )
