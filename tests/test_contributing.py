"""The walks of CONTRIBUTING.md, and the modules that the documents name, against the code as it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
STEP = re.compile(r"`((?:serving|autoscaler|batch|training)/[\w/]+\.py):([\w.]+)`")
# A file of ours, as a whole path or as a dotted module; the second may go on with the name of what is in it.
FILE = re.compile(r"\b((?:serving|autoscaler|batch|training|loadtests|tests)/[\w/]+\.(?:py|proto|lua))\b")
MODULE = re.compile(r"(?<![\w./])((?:serving|autoscaler|batch|training|loadtests)(?:\.[a-z_]+)+)(?![\w/])")
# The words of pyproject.toml and of Python that look like modules, and files.
NO_MODULE = re.compile(r".*\.(py|md|json|yaml|toml|txt|csv|sock|log)$")


def section(title: str) -> str:
    """The text under a heading, up to the next."""
    return CONTRIBUTING.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def names_of(path: Path) -> set[str]:
    """The functions and classes of a module, those of classes as `Class.name`."""
    found: set[str] = set()
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse(path.read_text()))]
    while waiting:
        prefix, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                waiting += [(f"{prefix}{child.name}.", child)] if isinstance(child, ast.ClassDef) else []
    return found


@pytest.mark.parametrize("walk", ["prediction", "version", "job", "training program"])
def test_each_step_of_a_walk_exists(walk: str) -> None:
    """A walk is of use only as long as each of its doors opens."""
    steps = STEP.findall(section(f"The walk of a {walk}"))

    assert len(steps) >= 10
    assert [
        f"{file}:{name}"
        for file, name in steps
        if not (ROOT / file).exists() or name not in names_of(ROOT / file)
    ] == []


def test_a_prediction_passes_few_modules_and_nouns() -> None:
    """Who reads the walk holds it in the head."""
    walk = section("The walk of a prediction")
    nouns = re.findall(r"\*(\w+)\*", walk.split("\n\n")[1])

    assert len({file for file, _ in STEP.findall(walk)}) <= 25
    assert len(nouns) <= 10
    assert [noun for noun in nouns[3:] if f"**{noun}**" not in walk] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_a_document_names_exist(document: Path) -> None:
    """A module that moved takes its documents along."""
    text = document.read_text()
    files = [name for name in FILE.findall(text) if not (ROOT / name).exists()]

    assert files == []
    assert [name for name in MODULE.findall(text) if not NO_MODULE.match(name) and not is_module(name)] == []


def is_module(name: str) -> bool:
    """Whether a dotted name is a module of ours, or something in one."""
    path = ROOT / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    for file in (path.parent.with_suffix(".py"), path.parent / "__init__.py"):
        if file.exists() and path.name in file.read_text():
            return True
    return False


def test_the_index_names_each_document() -> None:
    """What docs/README.md leaves out, nobody finds."""
    folder = ROOT / "docs"
    index = (folder / "README.md").read_text()

    assert [path.name for path in DOCUMENTS if path.parent == folder and f"({path.name})" not in index] == [
        "README.md"
    ]
