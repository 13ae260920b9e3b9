"""A PostgreSQL server for tests, with a folder and a unix socket of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.bounds import HANG_SECONDS

_USER = "pilotlight"
# Nothing of it must outlive the tests, so nothing has to be on disk.
_SETTINGS = (
    "listen_addresses=", "fsync=off", "full_page_writes=off", "shared_buffers=16MB",
    "max_connections=60", "autovacuum=off",
)  # fmt: skip


@dataclass
class Postgres:
    """A server that a test may stop and start again."""

    programs: Path
    folder: Path
    account: dict[str, Any]
    process: subprocess.Popen[Any] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def address(self, schema: str) -> str:
        return f"postgresql://{_USER}@/postgres?host={self.folder}&options=-csearch_path%3D{schema}"

    def create_database(self) -> str:
        """The address of a new schema, which is as good as a database and costs less."""
        name = f"test{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return self.address(name)

    def execute(self, statement: str) -> None:
        url = sa.make_url(self.address("public")).set(drivername="postgresql+psycopg")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)

    def start(self) -> None:
        """Returns once it takes connections."""
        command: list[str | Path] = [
            self.programs / "postgres",
            "-D",
            self.folder / "data",
            "-k",
            self.folder,
        ]
        command += [word for setting in _SETTINGS for word in ("-c", setting)]
        log = self.folder / "log"
        with log.open("ab") as output:
            process = self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                **self.account,
            )
        deadline = time.monotonic() + HANG_SECONDS
        while not self._is_ready():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """End it at once, with all connections: as its machine would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=HANG_SECONDS)
            self.process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it stand still: the kernel still takes what is sent to it, and nothing is answered."""
        assert self.process is not None
        stopped = [self.process.pid]
        os.kill(self.process.pid, signal.SIGSTOP)  # first, so that it makes no new ones
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        stopped += [int(pid) for pid in children.split()]
        for pid in stopped[1:]:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)

    def _is_ready(self) -> bool:
        with contextlib.suppress(sa.exc.OperationalError):
            self.execute("SELECT 1")
            return True
        return False


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Skips the test, and says why, where there is no PostgreSQL."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'pilotlight[postgres]'")
    programs = _find_programs()
    account = _find_account()
    # Other users cannot look into pytest's folders.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    try:
        if account:
            shutil.chown(folder, account["user"], account["group"])
        command: list[str | Path] = [
            programs / "initdb", "-D", folder / "data", "-A", "trust", "-U", _USER, "-E", "UTF8",
            "--locale=C", "--no-sync",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=HANG_SECONDS, **account)
        postgres = Postgres(programs, folder, account)
        postgres.start()
        try:
            yield postgres
        finally:
            postgres.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _find_programs() -> Path:
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return places[-1]


def _find_account() -> dict[str, Any]:
    """The user to run it as, for `subprocess`: it refuses root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody")
