from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from serving.errors import FailedPrecondition, Unavailable
from serving.gateway.state import migrations
from serving.gateway.state.migrations import MIGRATIONS, Migration, open_sqlite_file
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName
from tests.bounds import HANG_SECONDS

TABLE = "CREATE TABLE {} (name TEXT NOT NULL, document BLOB NOT NULL, PRIMARY KEY (name))"

# What the releases wrote, word for word.
DOCUMENTS = {
    "models": (
        "projects/p/models/m",
        '{"name":{"project":"p","model":"m"},"model":{"name":"projects/p/models/m","regions":["here"],'
        '"etag":"AAECAwQFBgc="},"default":"v"}',
    ),
    "versions": (
        "projects/p/models/m/versions/v",
        '{"name":{"project":"p","model":"m","version":"v"},"uid":"0123","version":{"name":'
        '"projects/p/models/m/versions/v","deploymentUri":"/models/m","state":"READY"},'
        '"deployed":{"model_dir":"/x","framework":"XGBOOST","merge":true,"tensorflow":true}}',
    ),
    "operations": (
        "projects/p/operations/create_m_v-1",
        '{"name":"projects/p/operations/create_m_v-1","project":"p","operation":{"name":'
        '"projects/p/operations/create_m_v-1","metadata":{"operationType":"CREATE_VERSION"},"done":true},'
        '"target":{"project":"p","model":"m","version":"v"}}',
    ),
    "jobs": (
        "projects/p/jobs/j",
        '{"name":"projects/p/jobs/j","project":"p","uid":"4567","number":1,"job":{"jobId":"j",'
        '"state":"SUCCEEDED"},"given":{"batchSize":7},"attempt":2}',
    ),
}

EARLIEST = ["models", "versions", "operations"]

# Opens the file of argv[1] and is killed in the middle of the last step.
KILLED = """
import os, signal, sys
from pathlib import Path
from serving.gateway.state.migrations import MIGRATIONS, Migration
from serving.gateway.state.migrations import document_table, make_table_creator, open_sqlite_file

def die(connection):
    make_table_creator(document_table("late"))(connection)
    os.kill(os.getpid(), signal.SIGKILL)

open_sqlite_file(Path(sys.argv[1]), (*MIGRATIONS, Migration("death", die)))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def write(file: Path, tables: Sequence[str], version: int) -> None:
    """A file as an earlier release left it."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        for table in tables:
            name, document = DOCUMENTS[table]
            database.execute(TABLE.format(table))
            database.execute(f"INSERT INTO {table} VALUES (?, ?)", (name, document.encode()))
        database.execute(f"PRAGMA user_version = {version}")


def read(file: Path) -> tuple[int, set[str]]:
    """The schema that a file says it has, and its tables."""
    with closing(sqlite3.connect(file)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return version, {name for (name,) in names}


def extended(*tables: str) -> Sequence[Migration]:
    """The steps with one more."""
    return (
        *MIGRATIONS,
        Migration(
            "more", migrations.make_table_creator(*(migrations.document_table(name) for name in tables))
        ),
    )


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("tables", [EARLIEST, list(DOCUMENTS)])
def test_files_of_earlier_releases_are_taken_over(file: Path, tables: list[str], version: int) -> None:
    """Every record is found, whether or not the file had jobs; the file as it was stays beside it."""
    write(file, tables, version)

    store = SqliteStore(file)
    state = store.load()
    store.close()

    assert state.models[ModelName("p", "m")].default == "v"
    deployed = state.versions[VersionName("p", "m", "v")].deployed
    assert deployed is not None and (deployed.framework, deployed.pilot) == ("XGBOOST", "tensorflow")
    assert state.operations["projects/p/operations/create_m_v-1"].operation.done
    assert [record.attempt for record in state.jobs.values()] == ([2] if "jobs" in tables else [])
    assert read(file)[0] == len(MIGRATIONS)
    assert read(file.with_name(f"state.db.v{version}")) == (version, set(tables))


def test_a_new_file_leaves_no_copy(file: Path) -> None:
    """There was nothing to keep."""
    open_sqlite_file(file).dispose()

    assert read(file)[0] == len(MIGRATIONS)
    assert [path.name for path in file.parent.iterdir()] == ["state.db"]


def test_a_file_that_is_up_to_date_is_left_alone(file: Path) -> None:
    """No step, no copy."""
    open_sqlite_file(file).dispose()
    content = file.read_bytes()
    open_sqlite_file(file).dispose()

    assert file.read_bytes() == content
    assert [path.name for path in file.parent.iterdir()] == ["state.db"]


def test_only_missing_steps_are_taken(file: Path) -> None:
    """A file one step behind takes that step."""
    open_sqlite_file(file).dispose()
    open_sqlite_file(file, extended("more")).dispose()

    version, tables = read(file)
    assert version == len(MIGRATIONS) + 1
    assert "more" in tables


def test_a_newer_file_is_refused(file: Path) -> None:
    """The error names both schemas and what to do; the file is not touched."""
    open_sqlite_file(file, extended("more")).dispose()
    content = file.read_bytes()
    have, know = len(MIGRATIONS) + 1, len(MIGRATIONS)

    with pytest.raises(FailedPrecondition, match=rf"schema {have}, this one knows {know}\. .*--state-dir"):
        open_sqlite_file(file)
    assert file.read_bytes() == content


def test_a_step_that_fails_leaves_nothing_behind(file: Path) -> None:
    """All steps are one transaction, tables included."""
    write(file, EARLIEST, 1)

    def fail(connection: sa.Connection) -> None:
        migrations.make_table_creator(migrations.document_table("late"))(connection)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        open_sqlite_file(file, (*MIGRATIONS, Migration("broken", fail)))
    assert read(file) == (1, {*EARLIEST})


def test_a_kill_during_a_step_leaves_nothing_behind(file: Path) -> None:
    """The next start begins where this one did."""
    write(file, EARLIEST, 1)
    subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False, timeout=HANG_SECONDS)

    assert read(file) == (1, {*EARLIEST})
    open_sqlite_file(file).dispose()
    assert read(file)[0] == len(MIGRATIONS)


def test_the_copy_has_what_only_the_log_holds(file: Path) -> None:
    """A commit that is not in the file itself yet is in the copy."""
    write(file, EARLIEST, 1)
    with closing(sqlite3.connect(file)) as open_elsewhere:
        open_elsewhere.execute("DELETE FROM models")
        open_elsewhere.commit()
        assert file.with_name("state.db-wal").stat().st_size > 0
        open_sqlite_file(file).dispose()

        with closing(sqlite3.connect(file.with_name("state.db.v1"))) as copy:
            assert copy.execute("SELECT count(*) FROM models").fetchone() == (0,)


def test_no_copy_no_change(file: Path) -> None:
    """A file that cannot be copied is not changed, and the error says where the copy should be."""
    write(file, EARLIEST, 1)
    file.with_name("state.db.v1").mkdir()

    with pytest.raises(Unavailable, match=r"state\.db\.v1"):
        open_sqlite_file(file)
    assert read(file) == (1, {*EARLIEST})


def test_the_copy_is_as_private_as_the_file(file: Path) -> None:
    """It may hold hashes of tokens."""
    write(file, EARLIEST, 1)
    file.chmod(0o600)
    open_sqlite_file(file).dispose()

    assert os.stat(file.with_name("state.db.v1")).st_mode & 0o777 == 0o600  # noqa: PTH116


def test_a_file_that_is_no_database_is_refused(file: Path) -> None:
    """The error names it, and says what to do."""
    file.write_text("this is a letter" * 100)

    with pytest.raises(FailedPrecondition, match=r"state\.db cannot be read: .*--state-dir"):
        open_sqlite_file(file)


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    """The error names it."""
    with pytest.raises(Unavailable, match=r"Cannot open the state file .*state\.db"):
        open_sqlite_file(tmp_path / "missing" / "state.db")
