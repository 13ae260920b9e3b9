"""Who may import whom; see "Who may import whom" in docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from serving.frameworks import load_frameworks

ROOT = Path(__file__).parents[1]
OURS = ("serving", "autoscaler", "batch", "training", "tuning")


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


MODULES = dict(modules())


@cache
def parse_module(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def parse_modules() -> Iterator[tuple[str, ast.Module]]:
    return ((name, parse_module(name)) for name in MODULES)


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
                    yield Import(inner if inner in MODULES else module, lazy, node.lineno)
            case ast.ImportFrom():
                raise AssertionError(f"a relative import in line {node.lineno}")
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case _:
                inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from imports(node, lazy=lazy or inside)


@cache
def find_imports() -> dict[str, list[Import]]:
    """The imports of all modules. Not at the import of these tests: each process of pytest does that."""
    return {name: list(imports(tree)) for name, tree in parse_modules()}


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


# ---- rooms

# Every room, and the rooms that it may import. All may import the vocabulary: the modules that stand loose in
# serving/. A room is a folder; a folder below it that is not named here belongs to it. Some rooms have a part
# on which others stand, and which has a line of its own. docs/architecture.md says why.
ROOMS: dict[str, set[str]] = {
    "autoscaler": {"autoscaler/node_memory"},
    "autoscaler/node_memory": set(),
    "batch": {"batch/messages", "serving/artifacts", "serving/runtimes"},
    "batch/messages": set(),
    "training": {"autoscaler", "serving/artifacts", "training/logs", "training/messages", "tuning/metrics"},
    "training/algorithms": {"serving/artifacts", "training"},
    "training/logs": set(),
    "training/messages": set(),
    "tuning": set(),
    "tuning/algorithms": {"tuning"},
    "tuning/metrics": set(),
    "serving/transport": {"serving/protocols"},
    "serving/protocols": set(),
    "serving/openapi": set(),
    "serving/predictor": set(),
    "serving/artifacts": {"serving/predictor"},
    "serving/logs": {"serving/artifacts"},
    "serving/runtimes": {"serving/predictor"},
    "serving/acceleration": {"serving/runtimes"},
    "serving/acceleration/sklearn": {"serving/acceleration", "serving/runtimes"},
    "serving/acceleration/xgboost": {"serving/acceleration"},
    "serving/runtimes/container": {"serving/runtimes"},
    "serving/runtimes/custom_runtime": {"serving/predictor", "serving/runtimes"},
    "serving/runtimes/external": {"serving/predictor", "serving/runtimes"},
    "serving/runtimes/lightgbm_runtime": {"serving/runtimes"},
    "serving/runtimes/onnx_runtime": {"serving/runtimes"},
    "serving/runtimes/sklearn_runtime": {
        "serving/acceleration",
        "serving/acceleration/sklearn",
        "serving/predictor",
        "serving/runtimes",
        "serving/runtimes/xgboost_runtime",
    },
    "serving/runtimes/tensorflow_runtime": {"serving/protocols", "serving/runtimes"},
    "serving/runtimes/xgboost_runtime": {
        "serving/acceleration",
        "serving/acceleration/xgboost",
        "serving/predictor",
        "serving/runtimes",
    },
    "serving/node": {
        "autoscaler/node_memory",
        "serving/acceleration",
        "serving/node/codecs",
        "serving/protocols",
        "serving/runtimes",
        "serving/transport",
    },
    "serving/node/codecs": {"serving/protocols", "serving/runtimes"},
    "serving/node/warmup": {
        "serving/acceleration",
        "serving/node",
        "serving/node/codecs",
        "serving/protocols",
        "serving/runtimes",
    },
    "serving/node/standalone": {
        "serving/node",
        "serving/node/warmup",
        "serving/openapi",
        "serving/protocols",
        "serving/runtimes",
        "serving/transport",
    },
    "serving/gateway/shared": {"serving/protocols", "serving/transport"},
    "serving/gateway/access/policy": {"serving/gateway/shared"},
    "serving/gateway/state": {"serving/gateway/access/policy", "serving/gateway/shared", "tuning"},
    "serving/gateway/audit": {
        "autoscaler",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/protocols",
    },
    "serving/gateway/access": {
        "autoscaler",
        "serving/gateway/access/policy",
        "serving/gateway/audit",
        "serving/gateway/shared",
        "serving/gateway/state",
    },
    "serving/gateway/catalog": {
        "serving/gateway/access/policy",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/logs",
        "serving/protocols",
        "tuning",
    },
    "serving/gateway/proxy": {
        "autoscaler",
        "autoscaler/node_memory",
        "serving/gateway/access",
        "serving/gateway/catalog",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/protocols",
        "serving/transport",
    },
    "serving/gateway/control": {
        "autoscaler",
        "serving/artifacts",
        "serving/gateway/catalog",
        "serving/gateway/proxy",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/logs",
        "serving/predictor",
    },
    "serving/gateway/jobs": {
        "autoscaler",
        "batch/messages",
        "serving/artifacts",
        "serving/gateway/catalog",
        "serving/gateway/control",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/predictor",
        "training/logs",
        "training/messages",
        "tuning",
    },
    "serving/gateway/studies": {
        "autoscaler",
        "serving/gateway/catalog",
        "serving/gateway/shared",
        "serving/gateway/state",
        "tuning",
    },
    "serving/gateway/observability": {
        "autoscaler",
        "serving/artifacts",
        "serving/gateway/audit",
        "serving/gateway/control",
        "serving/gateway/proxy",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/logs",
        "serving/protocols",
    },
    "serving/gateway/api": {
        "autoscaler",
        "serving/gateway/access",
        "serving/gateway/access/policy",
        "serving/gateway/catalog",
        "serving/gateway/control",
        "serving/gateway/jobs",
        "serving/gateway/observability",
        "serving/gateway/proxy",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/gateway/studies",
        "serving/logs",
        "serving/openapi",
        "serving/protocols",
        "serving/transport",
        "tuning",
    },
    "serving/gateway/console": {
        "autoscaler",
        "serving/gateway/access",
        "serving/gateway/access/policy",
        "serving/gateway/api",
        "serving/gateway/audit",
        "serving/gateway/control",
        "serving/gateway/observability",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/protocols",
        "serving/transport",
        "tuning/metrics",
    },
    "serving/gateway": {
        "autoscaler",
        "serving/gateway/access",
        "serving/gateway/api",
        "serving/gateway/audit",
        "serving/gateway/catalog",
        "serving/gateway/console",
        "serving/gateway/control",
        "serving/gateway/jobs",
        "serving/gateway/observability",
        "serving/gateway/proxy",
        "serving/gateway/shared",
        "serving/gateway/state",
        "serving/gateway/studies",
        "serving/protocols",
        "serving/transport",
    },
}
VOCABULARY = "serving"
# It may import any room, inside its commands; no room imports it.
COMMAND_LINE = "serving/cli"

# Modules that other rooms of the gateway stand on: they are apart from the folder that they are in.
PARTS = {
    "serving.gateway.methods": "serving/gateway/shared",
    "serving.gateway.process_slots": "serving/gateway/shared",
    "serving.gateway.coalesced_call": "serving/gateway/shared",
    "serving.gateway.request_context": "serving/gateway/shared",
    "serving.gateway.thread_pool": "serving/gateway/shared",
    "serving.gateway.api.request_io": "serving/gateway/shared",
    "serving.gateway.api.query": "serving/gateway/shared",
    "serving.gateway.access.policy": "serving/gateway/access/policy",
    "serving.gateway.access.roles": "serving/gateway/access/policy",
    "batch.messages": "batch/messages",
    "training.messages": "training/messages",
    "tuning.__main__": "tuning/algorithms",
    "tuning.suggester": "tuning/algorithms",
    "autoscaler.node_memory": "autoscaler/node_memory",
}

# Imports against the direction: no others, and none that is gone.
AGAINST: dict[tuple[str, str], str] = {
    ("serving.gateway.control.retention", "serving/gateway/jobs"): "asks which jobs are still at work",
    ("serving.node.app", "serving/node/warmup"): "a node warms itself up before it is ready",
    ("serving.runtimes", "serving/runtimes/container"): "the table of frameworks, when a model is loaded",
    ("serving.runtimes", "serving/runtimes/external"): "the same",
    ("serving.runtimes.pickle_loading", "serving/runtimes/xgboost_runtime"): "what a pickled booster is",
}


def room_of(module: str) -> str:
    """The room of a module of ours; the longest name that fits."""
    names = {part: room for part, room in PARTS.items() if within(module, part)}
    if names:
        return names[max(names, key=len)]
    folders = [room for room in (*ROOMS, COMMAND_LINE) if within(module, room.replace("/", "."))]
    return max(folders, key=len, default=VOCABULARY)


def test_no_module_stands_outside_the_rooms() -> None:
    """What is loose in serving/ is the vocabulary, no folder."""
    loose = {name for name in MODULES if room_of(name) == VOCABULARY}

    assert {name for name in loose if name.count(".") > 1} == set()
    assert [name for name in loose if any(other.startswith(f"{name}.") for other in MODULES)] == ["serving"]


def test_rooms_import_only_the_rooms_that_they_stand_on() -> None:
    """Whoever wants an arrow more draws it in ROOMS, and says why in docs/architecture.md."""
    wrong = [
        f"{name}:{found.line} ({room_of(name)}) imports {found.module} ({room_of(found.module)})"
        for name, all_found in find_imports().items()
        for found in all_found
        if found.module in MODULES
        and room_of(name) not in (COMMAND_LINE, room_of(found.module))
        and room_of(found.module) not in (ROOMS.get(room_of(name), set()) | {VOCABULARY})
        and (name, room_of(found.module)) not in AGAINST
    ]

    assert wrong == []


def test_the_vocabulary_stands_on_nothing() -> None:
    """All may import it, so it imports no room."""
    wrong = [
        (name, found.module)
        for name, all_found in find_imports().items()
        if room_of(name) == VOCABULARY
        for found in all_found
        if found.module in MODULES and room_of(found.module) != VOCABULARY
    ]

    assert wrong == []


def test_rooms_make_no_circle() -> None:
    """They can be read from the bottom up."""
    tuple(TopologicalSorter(ROOMS).static_order())


def test_no_rule_is_left_over() -> None:
    """A room that is gone, an arrow that nobody uses or an exception that is over would let others in."""
    used = {
        (name, room_of(found.module))
        for name in find_imports()
        for found in find_imports()[name]
        if found.module in MODULES
    }
    arrows = {(room_of(name), target) for name, target in used if (name, target) not in AGAINST}

    assert {(room, other) for room, others in ROOMS.items() for other in others} - arrows == set()
    assert AGAINST.keys() - used == set()
    assert ROOMS.keys() - {room_of(name) for name in MODULES} == set()


# ---- libraries, and modules that few may import

TENSORFLOW = ("serving.runtimes.tensorflow_runtime",)
XGBOOST = (
    "serving.runtimes.xgboost_runtime",
    "serving.acceleration.xgboost.candidates",
    "serving.acceleration.xgboost.inplace_predict",
    "serving.acceleration.xgboost.verification_rows",
)
SKLEARN = ("serving.runtimes.sklearn_runtime", "serving.acceleration.sklearn", *XGBOOST)
# Loads what those libraries put off, by name, in interpreters that may lack them.
WARM_IMPORTS = "serving.runtimes.sklearn_runtime.warm_imports"
PREDICTOR = "serving.predictor.program"
PROGRAMS = ("serving.gateway", "serving.node", "serving.cli")
MODELS = ("serving.runtimes", "serving.acceleration")
# The modules of the autoscaler but one, which nodes import too; the package itself is empty.
AUTOSCALER = tuple(
    name
    for name in MODULES
    if within(name, "autoscaler") and name not in ("autoscaler", "autoscaler.node_memory")
)
# What modules (those below the first, except those below the second) must not import.
FORBIDDEN: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("autoscaler", (), ("serving", "batch", "training", "tuning")),
    ("batch", (), ("autoscaler", *PROGRAMS)),
    ("serving", ("serving.gateway", "serving.cli", "serving.node.request_marks"), ("autoscaler",)),
    ("serving.node.request_marks", (), AUTOSCALER),
    # What both ends of a node's memory stand on.
    ("autoscaler.node_memory", (), OURS),
    ("serving", ("serving.cli", "serving.gateway.jobs"), ("batch",)),
    *((package, (), ("batch.job", "batch.beam", "batch.records")) for package in ("serving", "autoscaler")),
    ("batch.messages", (), ("serving", "apache_beam")),
    ("training", (), ("batch", *PROGRAMS, *MODELS)),
    ("training.messages", (), ("serving", "autoscaler")),
    ("training.logs", (), ("serving", "autoscaler")),
    # Of ours the vocabulary alone, and of that what errors are.
    ("tuning", (), ("batch", "training", *PROGRAMS, *MODELS)),
    (
        "tuning",
        ("tuning.algorithms", "tuning.suggester", "tuning.__main__"),
        ("numpy", "scipy", "threadpoolctl"),
    ),
    ("serving.gateway", (), ("tuning.algorithms", "tuning.suggester")),
    ("serving.gateway", (), ("serving.node", "serving.cli", *MODELS)),
    ("serving.node", (), ("serving.gateway", "serving.cli")),
    *((package, (), (*PROGRAMS, "starlette", "uvicorn")) for package in MODELS),
    ("serving", ("serving.gateway", "serving.node", "serving.transport.http_server"), ("starlette",)),
    ("serving.node", ("serving.node.standalone",), ("starlette", "uvicorn")),
    ("serving", ("serving.transport.http_server", "serving.transport.http_connection"), ("uvicorn",)),
    ("serving", TENSORFLOW, ("tensorflow",)),
    ("serving", ("serving.runtimes.lightgbm_runtime",), ("lightgbm",)),
    ("serving", ("serving.runtimes.onnx_runtime",), ("onnxruntime", "onnx")),
    ("serving", (*XGBOOST, PREDICTOR), ("xgboost",)),
    ("serving", (*SKLEARN, PREDICTOR), ("sklearn",)),
    (WARM_IMPORTS, (), ("sklearn", "xgboost", "tensorflow", "serving")),
    # Other interpreters run it, which have nothing of ours.
    (PREDICTOR, (), ("serving", "autoscaler", "batch", "msgspec")),
    ("serving", ("serving.artifacts.storage",), ("google.cloud.storage",)),
    ("serving", ("serving.transport.grpc_server",), ("grpc", "grpc_health", "grpc_reflection")),
    ("serving.transport", (), (*PROGRAMS, *MODELS)),
    ("serving.transport", ("serving.transport.http_server",), ("starlette",)),
    ("serving", ("serving.logs.sinks.bigquery_sink",), ("google.cloud.bigquery",)),
    ("serving", ("serving.gateway.control.server_scaling.kubernetes_deployment",), ("kubernetes",)),
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
            "serving.gateway.state.shared",
            "serving.gateway.access.token_store",
        ),
        ("sqlalchemy",),
    ),
    ("serving", (), ("apache_beam",)),
    ("serving", ("serving.gateway.console",), ("jinja2", "markupsafe")),
    # The kind of pool is chosen where the gateway is put together.
    (
        "serving",
        ("serving.gateway.app",),
        ("autoscaler.pools.local_pool", "autoscaler.pools.pilot_manager", "autoscaler.pools.node_pipes"),
    ),
    ("serving.protocols", (), (*PROGRAMS, *MODELS, "numpy", "grpc", "starlette")),
    ("serving.protocols", ("serving.protocols.protos",), ("google",)),
    ("serving.model_schema", (), (*PROGRAMS, *MODELS, "numpy")),
    # Everything stands on these, so they stand on nothing.
    ("serving.errors", (), ("serving",)),
    ("serving.frameworks", (), ("serving",)),
    ("serving.names", (), (*PROGRAMS, *MODELS)),
]

# Trains one model of each kind, as a user would in a script.
DEMO = "serving.cli.demo.train_models"

# Modules besides the folders of frameworks that may name one, and why. All others read facts of its record.
NAMING_FRAMEWORKS: dict[str, str] = {
    "serving.cli.demo": "trains one model of each kind",
    "serving.cli.flags.training_flags": "a scale tier has that name too",
    "serving.gateway.audit.method_names": "a protocol has that name too",
    "serving.gateway.catalog.job_checks.training_replicas": "models of built-in algorithms; a scale tier",
    "serving.gateway.console.pages.training_jobs": "a scale tier has that name too",
    "serving.gateway.state.migrations": "what records of earlier releases say",
    "serving.predictor.program": "other interpreters run it, which have nothing of ours",
    "serving.predictor.runtime_versions": "what Google's releases had installed",
    "serving.protocols": "a protocol has that name too",
    "serving.runtimes.pickle_loading": "reads the pickles of all that know scikit-learn",
    "training.algorithms": "train a model of one of them each",
}


@pytest.mark.parametrize(("package", "besides", "banned"), FORBIDDEN)
def test_import_direction(package: str, besides: tuple[str, ...], banned: tuple[str, ...]) -> None:
    """Nothing below the package imports what is banned there."""
    found = [
        f"{name}:{found.line} imports {found.module}"
        for name, all_found in find_imports().items()
        if within(name, package) and not within(name, *besides, DEMO)
        for found in all_found
        if within(found.module, *banned) and found.module != name
    ]

    assert found == []


def test_the_gateway_asks_nodes_by_their_methods() -> None:
    """What a pool shares with a node is the pool's matter."""
    wrong = [
        f"{name}:{node.lineno} reads {ast.unparse(node)}"
        for name, tree in parse_modules()
        if within(name, "serving.gateway")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("shared", "marks")
    ]

    assert wrong == []


def text_constants(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All texts in a module with their lines, docstrings and parts of f-strings included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_nobody_asks_what_a_framework_is_called() -> None:
    """Only its folder does: a new framework is that, and its line in the table of `serving.frameworks`."""
    records = load_frameworks().values()
    names = {name for one in records for name in (one.name, one.option, one.platform, one.library)} - {""}
    folders = tuple(one.load.rpartition(".")[0] for one in records)
    naming = {
        f"{name}:{line}": name
        for name, tree in parse_modules()
        if not within(name, *folders)
        for line, text in text_constants(tree)
        if text in names or (within(text, *folders) and name != "serving.frameworks")
    }

    assert [place for place, name in naming.items() if not within(name, *NAMING_FRAMEWORKS)] == []
    assert [one for one in NAMING_FRAMEWORKS if not any(within(name, one) for name in naming.values())] == []


def test_records_of_frameworks_load_nothing_heavy() -> None:
    """The gateway, and the command line at its start, read them too."""
    heavy = (*FRAMEWORKS, *WEB, "numpy", "msgspec", "serving.runtimes.instance_batch")
    code = (
        "import sys; from serving.frameworks import load_frameworks; load_frameworks(); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_the_names_of_the_table_are_there() -> None:
    """Import strings of records are read by no checker of types."""
    for framework in load_frameworks().values():
        named = (framework.load, framework.convert_files, framework.tiny_model, framework.threadless_warmup)
        for path in named:
            module, _, name = path.partition(":")
            tree = parse_module(module) if path else ast.parse("")
            assert not path or name in {getattr(node, "name", "") for node in tree.body}, path
        for module in framework.preload:
            assert not module.startswith("serving.") or module in MODULES, module


def loaded_by(*starts: str) -> set[str]:
    """What importing modules imports, up to the packages that they are in; lazy imports left out."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [one.module for one in find_imports().get(name, []) if not one.lazy]
            waiting += [name.rpartition(".")[0]] if "." in name else []
    return found


FRAMEWORKS = ("tensorflow", "sklearn", "xgboost", "lightgbm", "onnxruntime", "pandas", "treelite")
CLIENTS = ("google", "apache_beam", "grpc", "opentelemetry")
WEB = ("starlette", "uvicorn", "httptools")
HEAVY = (*FRAMEWORKS, *CLIENTS, "numpy", "sqlalchemy", "prometheus_client")
# What the start of a program must not load: the program itself says what it needs by then.
STARTS: dict[str, tuple[str, ...]] = {
    # `pilotlight --help` is no program and nothing heavy.
    "serving.cli": (*HEAVY, *WEB, "batch", "autoscaler", "serving.gateway", "serving.node", *MODELS),
    "serving.cli.app": (*HEAVY, *WEB, "batch", "autoscaler", "serving.gateway", "serving.node", *MODELS),
    "serving.gateway.main": (
        *FRAMEWORKS,
        *CLIENTS,
        "numpy",
        "serving.node",
        *MODELS,
        "batch.job",
        "serving.transport.grpc_server",
        "serving.gateway.console",
        "serving.gateway.state.shared",
        "jinja2",
    ),
    "serving.node.main": (
        *FRAMEWORKS,
        *CLIENTS,
        *WEB,
        "sqlalchemy",
        "prometheus_client",
        *AUTOSCALER,
        "batch",
        "serving.node.standalone",
        "serving.transport.http_server",
        "serving.transport.grpc_server",
        "serving.artifacts",
    ),
    "serving.node.standalone.server": (
        *FRAMEWORKS,
        *CLIENTS,
        "sqlalchemy",
        *AUTOSCALER,
        "batch",
        "serving.transport.grpc_server",
    ),
    "autoscaler.pilot": (*HEAVY, *WEB, "msgspec", "orjson", "serving"),
    "autoscaler.node_process": (*HEAVY, *WEB, "msgspec", "orjson", "serving"),
    "autoscaler.module_process": (*HEAVY, *WEB, "msgspec", "orjson", "batch"),
    "serving.artifacts.prepare": (*HEAVY, *WEB, "serving.gateway", "serving.node", *MODELS),
    "serving.logs.sinks.__main__": (*HEAVY, *WEB, "serving.gateway", "serving.node", *MODELS),
    "training.__main__": (*HEAVY, *WEB),
    "training.deployable_models": (*HEAVY, *WEB),
    "batch.__main__": (*FRAMEWORKS, *CLIENTS, *WEB, "sqlalchemy", "autoscaler", "batch.beam"),
}


@pytest.mark.parametrize(("start", "banned"), STARTS.items())
def test_a_start_loads_only_what_it_runs(start: str, banned: tuple[str, ...]) -> None:
    """All else is imported lazily, where it is needed."""
    assert start in MODULES
    assert [name for name in sorted(loaded_by(start)) if within(name, *banned)] == []


def test_settings_are_the_only_reader_of_the_environment() -> None:
    """`serving.config` reads it for all; two read the variables that Google's clients own."""
    readers = {
        name
        for name, tree in parse_modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"})
        or (isinstance(node, ast.Name) and node.id in {"environ", "getenv"})
    }

    # Some read nothing: `packages` hands the environment on to pip, a pilot's fork takes its node's, a batch
    # job hands on where temporary files go, and what a model's code finds online. A predictor takes its
    # node's, and a replica of a training job that of the job; installs
    # of its packages tell pip what is there already.
    assert readers == {
        "serving.config",
        "serving.artifacts.storage.gcs",
        "serving.logs.sinks.bigquery_sink",
        "serving.artifacts.packages",
        "serving.predictor.program",
        "autoscaler.pilot",
        "batch.attempt_process",
        "batch.beam.model_handler",
        "training.replicas.forked_program",
        "training.program",
        "training.trials.trial_process",
        "training.algorithms.collective",
        "training.algorithms.output",
        "training.provided.hypertune",
    }


def test_storage_reads_one_variable() -> None:
    """STORAGE_EMULATOR_HOST, which google-cloud-storage reads by itself."""
    read = [
        node.args[0].value
        for node in ast.walk(parse_module("serving.artifacts.storage.gcs"))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "os.environ.get"
        and isinstance(node.args[0], ast.Constant)
    ]

    assert read == ["STORAGE_EMULATOR_HOST"]
    assert ast.unparse(parse_module("serving.artifacts.storage.gcs")).count("environ") == 1


def test_there_is_no_import_cycle() -> None:
    """Any module can be read, and imported, on its own."""
    graph = {
        name: {found.module for found in all_found if not found.lazy and found.module in MODULES} - {name}
        for name, all_found in find_imports().items()
    }
    while leaves := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}

    assert graph == {}


def test_every_package_of_tests_is_one() -> None:
    """Without its __init__.py, tests/serving would hide serving."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}

    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
