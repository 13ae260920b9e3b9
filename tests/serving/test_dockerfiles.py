"""The Dockerfiles: what they are made of. `tests/soak/test_dockerfiles.py` carries them out."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from serving.container_platform import MODEL_MOUNT
from tests.dockerfile import ROOT, Step, read

FOLDER = ROOT / "serving" / "containers"
MODEL = FOLDER / "Dockerfile.model"
FILES = sorted(path for path in FOLDER.glob("Dockerfile.*") if path != MODEL)
# Packages of Debian that its slim images lack, by the extra whose library asks for them.
_SYSTEM_PACKAGES = {"lightgbm": "libgomp1", "onnx": "locales"}
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


@pytest.fixture(params=FILES, ids=lambda path: path.suffix[1:])
def steps(request: pytest.FixtureRequest) -> list[Step]:
    """The steps of each file."""
    return read(request.param.read_text())


def last(steps: list[Step], word: str) -> str:
    return [step.text for step in steps if step.word == word][-1]


def test_there_is_one_for_the_server_and_for_each_framework_set_of_nodes() -> None:
    """Those with TensorFlow and those without."""
    assert [path.suffix for path in FILES] == [".server", ".sklearn", ".tensorflow"]


def test_a_container_runs_as_nobody_in_particular(steps: list[Step]) -> None:
    """By number, which Kubernetes can tell from root's; reached from outside, on the port that is exposed."""
    program, command = json.loads(last(steps, "CMD"))
    assert (program, command in {"node", "serve"}) == ("pilotlight", True)
    assert all(int(number) > 0 for number in last(steps, "USER").split(":"))
    assert last(steps, "EXPOSE") == "8080"
    assert "PILOTLIGHT_HOST=0.0.0.0" in last(steps, "ENV").split()


def test_an_image_has_what_it_runs_and_no_more(steps: list[Step]) -> None:
    """A slim base; no index files, no cache, no compilers, no sources: only what the last stage takes.

    Of the system's packages those alone that the extras in the image need.
    """
    stages = [number for number, step in enumerate(steps) if step.word == "FROM"]
    build, final = steps[: stages[-1]], steps[stages[-1] :]
    extras = set(re.findall(r"source\[([\w,]+)\]", " ".join(step.text for step in build))[0].split(","))
    installed = [step.text for step in final if step.word == "RUN"]

    assert all("-slim" in steps[number].text for number in stages)
    assert [step.words[1:] for step in final if step.word == "COPY"] == [["/opt/pilotlight/venv"] * 2]
    assert not any("apt-get" in step.text for step in build)
    assert bool(installed) == bool(extras & _SYSTEM_PACKAGES.keys())
    for text in installed:
        packages = re.search(r"apt-get install --yes --no-install-recommends ([\w ]+?) +&&", text)
        assert packages
        assert set(packages[1].split()) == {_SYSTEM_PACKAGES[one] for one in extras & _SYSTEM_PACKAGES.keys()}
        assert text.endswith("rm -rf /var/lib/apt/lists/*")
    assert all("--no-cache-dir" in step.text for step in steps if "pip install" in step.text)


def test_what_is_copied_is_there_and_is_not_ignored(steps: list[Step]) -> None:
    """All that makes the distribution, from the context."""
    copied = [
        name
        for step in steps
        if step.word == "COPY" and "--from" not in step.text
        for name in step.words[:-1]
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = [name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]]

    assert set(packages) < set(copied)
    assert all((ROOT / name).exists() for name in copied)
    assert sorted(line[1:] for line in IGNORED if line.startswith("!")) == sorted(copied)


def test_the_python_is_one_that_the_project_takes(steps: list[Step]) -> None:
    """And the same in both stages: an environment does not move from one to another."""
    images = {step.words[0] for step in steps if step.word == "FROM"}

    assert images == {"python:3.11-slim"}


def test_an_image_with_a_model_is_prepared_and_runs_as_the_node_does() -> None:
    """It adds to an image of a node, and gives up the rights that writing the record takes."""
    steps = read(MODEL.read_text())

    assert [step.word for step in steps] == ["ARG", "FROM", "COPY", "USER", "RUN", "USER"]
    assert steps[2].words[-1] == str(MODEL_MOUNT)
    assert steps[4].words == ["pilotlight", "prepare", "--model-dir", str(MODEL_MOUNT)]
    assert {last(read(path.read_text()), "USER") for path in FILES} == {steps[-1].text}


def test_a_step_that_cannot_be_carried_out_is_refused() -> None:
    """Rather than left out."""
    with pytest.raises(ValueError, match="ADD is none of"):
        read("FROM python\nADD . /")
