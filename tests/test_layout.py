"""Who may import whom; see "The house on one page" in docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = ("serving", "autoscaler", "batch")


@dataclass(frozen=True)
class Import:
    """One import of `module`; `lazy` when it stands inside a function."""

    module: str
    lazy: bool
    line: int


def modules() -> Iterator[tuple[str, Path]]:
    """Our modules, by dotted name."""
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


TREES = {name: ast.parse(path.read_text()) for name, path in modules()}


def imports(tree: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    """All imports below a node of a module's tree, those for the type checker alone left out."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                yield from (Import(alias.name, lazy, node.lineno) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                # `from package import module` names a module too, if there is one.
                for alias in node.names:
                    inner = f"{module}.{alias.name}"
                    yield Import(inner if inner in TREES else module, lazy, node.lineno)
            case ast.ImportFrom():
                raise AssertionError(f"a relative import in line {node.lineno}")
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case _:
                inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from imports(node, lazy=lazy or inside)


IMPORTS = {name: list(imports(tree)) for name, tree in TREES.items()}


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


# What modules (those below the first, except those below the second) must not import.
TENSORFLOW = tuple(name for name in TREES if name.startswith("serving.runtimes.tensorflow_runtime.runtime"))
XGBOOST = tuple(name for name in TREES if name.startswith("serving.runtimes.xgboost_runtime.runtime"))
SKLEARN = (
    *(name for name in TREES if name.startswith("serving.runtimes.sklearn_runtime.runtime")),
    "serving.acceleration.sklearn.candidates",
    *XGBOOST,
)
PREDICTOR = "serving.predictor.program"
FORBIDDEN: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("autoscaler", (), ("serving", "batch")),
    ("batch", (), ("autoscaler", "serving.gateway", "serving.node", "serving.cli")),
    ("serving", ("serving.gateway", "serving.cli"), ("autoscaler",)),
    ("serving", ("serving.cli", "serving.gateway.jobs"), ("batch",)),
    ("batch.messages", (), ("serving", "apache_beam")),
    ("serving.gateway", (), ("serving.node", "serving.cli", "serving.runtimes")),
    ("serving.node", (), ("serving.gateway", "serving.cli")),
    ("serving.runtimes", (), ("serving.gateway", "serving.node", "serving.cli", "starlette", "uvicorn")),
    ("serving", ("serving.gateway", "serving.node", "serving.transport.http_server"), ("starlette",)),
    ("serving", TENSORFLOW, ("tensorflow",)),
    ("serving", (*XGBOOST, PREDICTOR), ("xgboost",)),
    ("serving", (*SKLEARN, PREDICTOR), ("sklearn",)),
    # Other interpreters run it, which have nothing of ours.
    (PREDICTOR, (), ("serving", "autoscaler", "batch", "msgspec")),
    ("serving", ("serving.artifacts.storage",), ("google.cloud.storage",)),
    ("serving", ("serving.transport.grpc_server",), ("grpc", "grpc_health", "grpc_reflection")),
    (
        "serving.transport.grpc_server",
        (),
        ("serving.gateway", "serving.node", "serving.runtimes", "serving.cli", "starlette"),
    ),
    ("serving", ("serving.logs.sinks.bigquery_sink",), ("google.cloud.bigquery",)),
    (
        "serving.gateway",
        (),
        ("serving.artifacts.storage", "serving.logs.sinks.sink_factory", "serving.logs.sinks.bucket_sink"),
    ),
    (
        "serving",
        (
            "serving.gateway.state.store",
            "serving.gateway.state.migrations",
            "serving.gateway.access.token_store",
        ),
        ("sqlalchemy",),
    ),
    ("serving", (), ("apache_beam",)),
    (
        "serving.protocols",
        (),
        ("serving.gateway", "serving.node", "serving.runtimes", "serving.cli", "numpy", "grpc", "starlette"),
    ),
    ("serving.protocols", ("serving.protocols.protos",), ("google",)),
    ("serving.model_schema", (), ("serving",)),
    # Everything stands on these, so they stand on nothing.
    ("serving.errors", (), ("serving",)),
    ("serving.names", (), ("serving.gateway", "serving.node", "serving.runtimes", "serving.cli")),
]

# Trains one model of each kind, as a user would in a script.
DEMO = "serving.cli.demo.train_models"


@pytest.mark.parametrize(("package", "besides", "banned"), FORBIDDEN)
def test_import_direction(package: str, besides: tuple[str, ...], banned: tuple[str, ...]) -> None:
    """Nothing below the package imports what is banned there."""
    found = [
        f"{name}:{found.line} imports {found.module}"
        for name, all_found in IMPORTS.items()
        if within(name, package) and not within(name, *besides, DEMO)
        for found in all_found
        if within(found.module, *banned) and found.module != name
    ]

    assert found == []


def test_the_command_loads_only_what_it_runs() -> None:
    """What comes with `pilotlight --help` is no program and nothing heavy: all that is imported lazily."""
    found: set[str] = set()
    waiting = ["serving.cli", "serving.cli.app"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [one.module for one in IMPORTS.get(name, []) if not one.lazy]

    heavy = (
        "numpy",
        "tensorflow",
        "sklearn",
        "xgboost",
        "google",
        "starlette",
        "uvicorn",
        "sqlalchemy",
        "batch",
    )
    programs = ("serving.gateway", "serving.node", "serving.runtimes", "autoscaler")
    assert [name for name in sorted(found) if within(name, *heavy, *programs)] == []


def test_settings_are_the_only_reader_of_the_environment() -> None:
    """`serving.config` reads it for all; two read the variables that Google's clients own."""
    readers = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"})
        or (isinstance(node, ast.Name) and node.id in {"environ", "getenv"})
    }

    # Some read nothing: `packages` hands the environment on to pip, a pilot's fork takes its node's, a batch
    # job hands on where temporary files go, and what a model's code finds online. A predictor takes its
    # node's.
    assert readers == {
        "serving.config",
        "serving.artifacts.storage.gcs",
        "serving.logs.sinks.bigquery_sink",
        "serving.artifacts.packages",
        "serving.predictor.program",
        "autoscaler.pilot",
        "batch.__main__",
        "batch.beam.model_handler",
    }


def test_storage_reads_one_variable() -> None:
    """STORAGE_EMULATOR_HOST, which google-cloud-storage reads by itself."""
    read = [
        node.args[0].value
        for node in ast.walk(TREES["serving.artifacts.storage.gcs"])
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "os.environ.get"
        and isinstance(node.args[0], ast.Constant)
    ]

    assert read == ["STORAGE_EMULATOR_HOST"]
    assert ast.unparse(TREES["serving.artifacts.storage.gcs"]).count("environ") == 1


def test_there_is_no_import_cycle() -> None:
    """Any module can be read, and imported, on its own."""
    graph = {
        name: {found.module for found in all_found if not found.lazy and found.module in TREES} - {name}
        for name, all_found in IMPORTS.items()
    }
    while leaves := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}

    assert graph == {}


def test_every_package_of_tests_is_one() -> None:
    """Without its __init__.py, tests/serving would hide serving."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}

    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
