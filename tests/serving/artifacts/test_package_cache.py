"""Installs of packages, kept by what they were made of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from serving.artifacts import package_cache
from serving.artifacts.package_cache import InstalledCode
from serving.artifacts.prepare import PreparationRequest
from serving.artifacts.storage import ArtifactFetcher
from serving.errors import LoadFailed
from tests.end_to_end.models import wheel
from tests.server import until
from tests.serving.artifacts.test_packages import sdist

pytestmark = pytest.mark.usefixtures("no_index")


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package index is in reach."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture
def storage(tmp_path: Path) -> ArtifactFetcher:
    return ArtifactFetcher(tmp_path / "cache", 1 << 30)


def counting(tmp_path: Path, *, after: str = "", name: str = "user") -> Path:
    """An archive that leaves a line in `builds` whenever a wheel is built of it."""
    code = f"(open({str(tmp_path / 'builds')!r}, 'a').write('built\\n'), {after or None})"
    return sdist(
        tmp_path,
        name,
        f"py_modules=['{name}'], description=str({code} and '')",
        {f"{name}.py": "ANSWER = 42\n"},
    )


def built(tmp_path: Path) -> int:
    """How often: setup.py runs several times in one build."""
    return (tmp_path / "builds").read_text().count("built") if (tmp_path / "builds").exists() else 0


def test_the_same_packages_are_built_once(tmp_path: Path, storage: ArtifactFetcher) -> None:
    """Each version has files of its own all the same; other archives are other builds."""
    archive = counting(tmp_path)

    first = package_cache.install_cached([archive], tmp_path / "first", "", storage)
    once = built(tmp_path)
    second = package_cache.install_cached([archive], tmp_path / "second", "", storage)

    assert first == InstalledCode((tmp_path / "first/packages",))
    assert second == InstalledCode((tmp_path / "second/packages",))
    assert built(tmp_path) == once > 0
    files = [tmp_path / name / "packages/user.py" for name in ("first", "second")]
    assert not files[0].samefile(files[1])
    assert [file.read_text() for file in files] == ["ANSWER = 42\n"] * 2

    other = counting(tmp_path / "other", name="user")
    package_cache.install_cached([other], tmp_path / "third", "", storage)
    assert built(tmp_path / "other") > 0


def test_a_build_depends_on_the_libraries_it_was_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the interpreter, what that has, and where packages come from."""
    archive = wheel(tmp_path, "user", "1.0", {"user.py": ""})
    first = package_cache.digest_inputs([archive], "")

    assert package_cache.digest_inputs([archive], "") == first
    assert package_cache.digest_inputs([archive], sys.executable) != first
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    assert package_cache.digest_inputs([archive], "") != first


def test_an_environment_is_kept_too(tmp_path: Path, storage: ArtifactFetcher) -> None:
    """What conflicts with the server gets one that has the server's other libraries, and can be moved."""
    archive = wheel(tmp_path, "idna", "0.1", {"idna.py": "ANSWER = 'of the package'\n"})

    first = package_cache.install_cached([archive], tmp_path / "first", "", storage)
    second = package_cache.install_cached([archive], tmp_path / "second", "", storage)

    assert first.interpreter == str(tmp_path / "first/environment/bin/python")
    assert "other versions than the server has" in first.warnings[0]
    assert second.warnings == first.warnings
    code = "import idna, numpy, sys; print(idna.ANSWER, sys.prefix)"
    for one in (first, second):
        done = subprocess.run([one.interpreter, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split()[:3] == ["of", "the", "package"]
        assert done.stdout.split()[3] == str(Path(one.interpreter).parents[1])


@pytest.mark.soak
def test_what_cannot_be_installed_apart_either_says_both_reasons(
    tmp_path: Path, storage: ArtifactFetcher
) -> None:
    """And the command that helps."""
    archive = wheel(tmp_path, "old", "0.1", {"old.py": ""}, requires="numpy<1.0")

    with pytest.raises(LoadFailed) as failed:
        package_cache.install_cached([archive], tmp_path / "target", "", storage, runtime_version="2.1")

    assert "the server has numpy" in failed.value.message
    assert "An environment of its own failed too" in failed.value.message
    assert failed.value.message.count("Failed to load model") == 1
    assert "`pilotlight runtimes add 2.1 --python PATH`, and try again" in failed.value.message
    assert not list((tmp_path / "cache/.partial").iterdir())


def test_modules_that_are_listed_as_scripts_are_found_by_another_interpreter(
    tmp_path: Path, storage: ArtifactFetcher
) -> None:
    """As Google's tutorial of custom routines has them, whose runtime version has an interpreter."""
    modules = {"user.py": "from other import ANSWER\n", "other.py": "ANSWER = 42\n"}
    archive = sdist(tmp_path, "user", "scripts=['user.py', 'other.py']", modules)

    code = package_cache.install_cached([archive], tmp_path / "target", sys.executable, storage)

    assert code.interpreter == str(tmp_path / "target/environment/bin/python")
    command = [code.interpreter, "-c", "import user; print(user.ANSWER, user.__file__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["42", str(tmp_path / "target/environment/bin/user.py")]


@pytest.mark.soak
def test_pins_that_only_another_python_can_have_name_the_command(
    tmp_path: Path, storage: ArtifactFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages for training pin versions of their time: which Python an index has them for is looked up."""
    offered = tmp_path / "index"
    offered.mkdir()
    for tag in ("cp37-cp37m", "cp38-cp38", "cp39-cp39"):
        (offered / f"numpy-1.19.5-{tag}-manylinux1_x86_64.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", str(offered))
    archive = wheel(tmp_path, "old", "0.1", {"old.py": ""}, requires="numpy==1.19.5")

    with pytest.raises(LoadFailed) as failed:
        package_cache.install_cached([archive], tmp_path / "target", "", storage, runtime_version="1.15")

    assert "For Python 3.9 there is numpy==1.19.5: `pilotlight runtimes add 1.15 --create --python " in (
        failed.value.message
    )
    assert "--with 'numpy==1.19.5'`" in failed.value.message
    assert "and try again" in failed.value.message


def test_a_package_may_be_called_as_one_of_the_server(tmp_path: Path, storage: ArtifactFetcher) -> None:
    """Another process of the server's Python computes it, where it is found first."""
    archive = wheel(tmp_path, "user", "1.0", {"serving/__init__.py": ""})

    code = package_cache.install_cached([archive], tmp_path / "target", "", storage)

    assert code == InstalledCode((tmp_path / "target/packages",), sys.executable)


def test_who_wants_the_same_at_the_same_time_waits_for_it(tmp_path: Path, storage: ArtifactFetcher) -> None:
    """It is built once."""
    archive = counting(tmp_path)
    package_cache.install_cached(
        [archive], tmp_path / "alone", "", ArtifactFetcher(tmp_path / "another", 1 << 30)
    )
    once = built(tmp_path)

    with ThreadPoolExecutor(3) as pool:
        found = list(
            pool.map(
                lambda name: package_cache.install_cached([archive], tmp_path / name, "", storage),
                ("a", "b", "c"),
            )
        )

    assert built(tmp_path) == 2 * once
    assert [code.folders[0].parent.name for code in found] == ["a", "b", "c"]


def test_a_killed_build_is_made_again(tmp_path: Path, storage: ArtifactFetcher) -> None:
    """What it left is no build."""
    stuck = tmp_path / "stuck"
    stuck.touch()
    wait = f"__import__('time').sleep(600 * __import__('os').path.exists({str(stuck)!r}))"
    archive = counting(tmp_path, after=wait)
    request = PreparationRequest(
        "", (str(archive),), str(tmp_path / "version"), str(tmp_path / "cache"), 1 << 30
    )
    with subprocess.Popen(
        [sys.executable, "-m", "serving.artifacts.prepare"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(request))
        process.stdin.close()
        until(lambda: built(tmp_path), "it is being built")
        os.killpg(process.pid, signal.SIGKILL)

    stuck.unlink()
    code = package_cache.install_cached([archive], tmp_path / "target", "", storage)

    assert (code.folders[0] / "user.py").exists()
