"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from serving.config import set_grpc_environment
from tests import scheduling
from tests.emulator import Emulator, Front, running_emulator, running_front
from tests.postgres import Postgres, running_postgres

# Before anything imports gRPC: tests start processes beside it, as servers do.
set_grpc_environment()

# A shell without job control ignores SIGINT in what it starts in the background, and tests pass that on.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Until all tests are collected: what they import stays.
gc.disable()

# No deadline: machines are noisy. A gate must not depend on luck: there the examples are always the same.
settings.register_profile("search", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate" if os.environ.get("CI") else "search")


_FIGURE = "figure"

Report = Callable[[str], None]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Takes a line with what a test measured; all are printed at the end, to be copied into docs/."""

    def note(line: str) -> None:
        # A property comes back from the process that runs the test.
        request.node.user_properties.append((_FIGURE, line))

    return note


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import all tests, and all libraries with them, to find the few with the mark `alone`."""
    wanted = config.option.markexpr.startswith("alone")
    skipped = wanted and collection_path.suffix == ".py" and "mark.alone" not in collection_path.read_text()
    return skipped or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    items.sort(key=lambda item: scheduling.turn(item.nodeid))


def pytest_collection_finish() -> None:
    """Keep what the imports have made, millions of objects, out of each later look for garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.Scheduling:
    """Let tests that share something costly run in one process."""
    return scheduling.Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more processes than there are cores, because many tests wait for others; at most four."""
    return min(len(os.sched_getaffinity(0)) + 2, 4)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures."""
    done = (result for outcome in ("passed", "failed") for result in terminalreporter.stats.get(outcome, ()))
    figures = [text for result in done for name, text in result.user_properties if name == _FIGURE]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def emulator_server() -> Iterator[Emulator]:
    """The one Cloud Storage emulator of a test run. Tests make buckets of their own in it."""
    with running_emulator() as emulator:
        yield emulator


@pytest.fixture
def emulator(emulator_server: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The emulator, with gs:// pointing to it in this process and its children for the time of a test."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator_server.url)
    return emulator_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The one PostgreSQL of a test run. Tests make databases of their own in it."""
    with running_postgres() as postgres:
        yield postgres


@pytest.fixture
def postgres(postgres_server: Postgres) -> Postgres:
    """It runs, also after a test that has stopped it."""
    if postgres_server.process is None:
        postgres_server.start()
    return postgres_server


@pytest.fixture
def front(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A server that can fail, between gs:// and the emulator."""
    with running_front(emulator.url) as front:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.url)
        # The client asks for the bucket's metadata in the background; tests count and fail requests.
        monkeypatch.setenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        yield front
    # The storage client drops the responses of failed downloads without closing them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
