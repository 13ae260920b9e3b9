from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from serving.errors import Unavailable
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import (
    DeploymentInfo,
    JobRecord,
    ModelRecord,
    OperationRecord,
    Record,
    VersionRecord,
)
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName
from serving.resources import (
    AutoScaling,
    BatchOptions,
    Job,
    JobState,
    MetricSpec,
    Model,
    Operation,
    OperationMetadata,
    PredictionInput,
    PredictionOutput,
    RpcStatus,
    Version,
    VersionState,
    format_timestamp,
)

MODEL = ModelName("p", "m")
VERSION = VersionName("p", "m", "v")

# Commits models m0, m1, ... for as long as it lives, and tells of each when it is committed.
WRITER = """
import sys
from pathlib import Path
from serving.gateway.state.records import ModelRecord
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName
from serving.resources import Model

store = SqliteStore(Path(sys.argv[1]))
for number in range(1_000_000):
    pair = [ModelRecord(name=ModelName("p", f"{half}{number}"), model=Model()) for half in "ab"]
    store.commit({("models", str(record.name)): record for record in pair})
    print(number, flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def store(file: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(file)
    yield store
    store.close()


def everything() -> list[tuple[str, Record]]:
    version = Version(
        name=str(VERSION),
        state=VersionState.READY,
        labels={"team": "ads"},
        package_uris=("gs://b/p-0.1.tar.gz",),
        auto_scaling=AutoScaling(min_nodes=1, metrics=(MetricSpec(name="CPU_USAGE", target=60),)),
        create_time=format_timestamp(datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)),
    )
    operation = Operation(
        name="projects/p/operations/create_m_v-1",
        metadata=OperationMetadata(
            operation_type="CREATE_VERSION", version=version, warnings=("old pickle",)
        ),
        done=True,
        error=RpcStatus(code=3, message="no"),
    )
    deployed = DeploymentInfo(model_dir="/x", packages=("/y", "/z"), framework="XGBOOST", merge=True)
    job = Job(
        job_id="j",
        state=JobState.RUNNING,
        prediction_input=PredictionInput(batch_size="7", input_paths=("/x",)),
        prediction_output=PredictionOutput(prediction_count="5", node_hours=0.25),
        batch_options=BatchOptions(keys=("id",)),
    )
    return [
        ("models", ModelRecord(name=MODEL, model=Model(name=str(MODEL), regions=("here",)), default="v")),
        ("versions", VersionRecord(name=VERSION, uid="0123", version=version, deployed=deployed)),
        (
            "operations",
            OperationRecord(name=operation.name, project="p", operation=operation, target=VERSION),
        ),
        (
            "jobs",
            JobRecord(
                name="projects/p/jobs/j",
                project="p",
                uid="4567",
                number=1,
                job=job,
                given=msgspec.Raw(b'{"batchSize":7,"input_paths":["/x"],"nested":{"deep":[1.5,null]}}'),
                options=msgspec.Raw(b'{"keys":["id"]}'),
                target=VERSION,
                target_uid="0123",
                attempt=2,
                lost=1,
            ),
        ),
    ]


def test_a_new_store_is_empty(store: SqliteStore) -> None:
    """It makes its file and tables."""
    assert store.load() == CatalogState()


def test_what_is_committed_is_loaded_by_the_next(store: SqliteStore, file: Path) -> None:
    """Records come back equal, under names that are equal."""
    records = everything()
    store.commit({(table, str(record.name)): record for table, record in records})
    store.close()

    reopened = SqliteStore(file)
    state = reopened.load()
    reopened.close()

    (_, model), (_, version), (_, operation), (_, job) = records
    assert (state.models, state.versions) == ({MODEL: model}, {VERSION: version})
    assert state.operations == {operation.name: operation}
    assert dict(state.jobs) == {job.name: job}


def test_a_commit_replaces_and_removes(store: SqliteStore) -> None:
    """None removes; removing what is not there is no error."""
    (table, record), *_ = everything()
    store.commit({(table, str(MODEL)): record})

    changed = ModelRecord(name=MODEL, model=Model(description="changed"))
    store.commit({(table, str(MODEL)): changed})
    assert store.load().models == {MODEL: changed}

    store.commit({(table, str(MODEL)): None, (table, "projects/p/models/other"): None})
    assert store.load() == CatalogState()


def test_a_commit_is_whole_or_not_at_all(store: SqliteStore) -> None:
    """When one record cannot be written, none is."""
    (table, record), *_ = everything()

    with pytest.raises(KeyError):
        store.commit({(table, str(MODEL)): record, ("nonsense", "x"): record})

    assert store.load() == CatalogState()


@pytest.mark.parametrize("replaced", [False, True])
def test_nothing_is_written_to_a_file_that_nobody_finds(
    store: SqliteStore, file: Path, tmp_path: Path, replaced: bool
) -> None:
    """A change would be acknowledged, and gone with the process; it works again once the file is back."""
    record = ModelRecord(name=MODEL, model=Model(name=str(MODEL)))
    aside = file.rename(tmp_path / "aside")
    if replaced:
        file.touch()

    with pytest.raises(Unavailable, match="was removed or replaced"):
        store.commit({("models", str(MODEL)): record})
    with pytest.raises(Unavailable, match="was removed or replaced"):
        store.check_writable()
    aside.replace(file)
    store.check_writable()
    store.commit({("models", str(MODEL)): record})

    assert store.load().models == {MODEL: record}


def test_what_was_refused_is_tried_again_by_a_check(store: SqliteStore, file: Path) -> None:
    """Of a disk that is full again and again a look at its free space does not tell."""
    record = ModelRecord(name=MODEL, model=Model(name=str(MODEL)))
    store.check_writable()
    with contextlib.closing(sqlite3.connect(file)) as other:
        other.execute("ALTER TABLE models RENAME TO elsewhere")
        with pytest.raises(Unavailable, match="cannot be written"):
            store.commit({("models", str(MODEL)): record})
        before = file.with_name("state.db-wal").stat().st_size
        store.check_writable()
        assert file.with_name("state.db-wal").stat().st_size > before
        other.execute("ALTER TABLE elsewhere RENAME TO models")
    store.commit({("models", str(MODEL)): record})


def test_the_log_of_the_state_file_is_missed(store: SqliteStore, file: Path) -> None:
    """What is in it would be lost with the process; a store that is closed in order puts it into the file."""
    record = ModelRecord(name=MODEL, model=Model(name=str(MODEL)))
    store.commit({("models", str(MODEL)): record})
    file.with_name("state.db-wal").unlink()

    with pytest.raises(Unavailable, match=r"state\.db-wal was removed or replaced"):
        store.commit({("models", str(MODEL)): None})
    store.close()

    again = SqliteStore(file)
    assert again.load().models == {MODEL: record}
    again.commit({("models", str(MODEL)): None})
    again.close()


def test_what_was_committed_survives_a_kill(file: Path) -> None:
    """Whenever the writer is killed: all it told of is there, and every commit is whole."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [int(writer.stdout.readline()) for _ in range(20)]
    os.kill(writer.pid, signal.SIGKILL)
    told += [int(line) for line in writer.stdout.read().split()]
    writer.wait()
    writer.stdout.close()

    store = SqliteStore(file)
    found = {name.model for name in store.load().models}
    store.close()

    assert {f"{half}{number}" for number in told for half in "ab"} <= found
    assert {name[1:] for name in found if name[0] == "a"} == {name[1:] for name in found if name[0] == "b"}
    assert len(found) <= 2 * (len(told) + 1)
