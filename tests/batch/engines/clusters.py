"""Real clusters of Flink and Spark on loopback, started from the folders that environment variables name.

`TESTS_FLINK` has the jars of a Flink distribution, `TESTS_FLINK_JOB_SERVER` is Beam's job server for it;
`TESTS_SPARK` is a Spark, `TESTS_SPARK_JOB_SERVER` its job server. docs/batch.md says where they come from.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from tests.server import until

# What Java 17 and later keep closed, and Flink, Spark and Beam open all the same.
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
# Those that a cluster has, with one place each.
WORKERS = 2
JAVA = ("java", *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED))


def path_from(variable: str) -> Path:
    """The file or folder that a variable names; without it the test is skipped."""
    if not (value := os.environ.get(variable)):
        pytest.skip(f"{variable} is not set: see docs/batch.md")
    return Path(value)


class Cluster:
    """Processes of a cluster, which end with the block that it is used in. Their logs are in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], **environment: str) -> None:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(temporary), **environment},
                start_new_session=True,
            )

    def wait_for(self, is_up: Callable[[], bool], what: str) -> None:
        """What is not up in time ends with the test that waits for it."""
        try:
            until(is_up, what)
        except AssertionError:
            self.close()
            raise

    def kill(self, name: str) -> None:
        """As when the machine is lost: its workers go too."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


class EngineCluster(Protocol):
    """A cluster of either engine. Workers have one place each."""

    def list_unfinished(self) -> list[str]: ...

    def is_free(self, workers: int) -> bool: ...

    def add_worker(self, name: str) -> None: ...

    def kill(self, name: str) -> None: ...


class FlinkCluster(Cluster):
    """A JobManager; TaskManagers of one slot each are started by name. `restart` is its restart strategy."""

    def __init__(self, libraries: Path, folder: Path, restart: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self._jars = ":".join(str(jar) for jar in sorted(libraries.glob("*.jar")))
        self._rest, self._rpc = free_port(), free_port()
        self._restart = restart
        settings = folder / "conf"
        settings.mkdir(exist_ok=True)
        (settings / "flink-conf.yaml").write_text("")
        (settings / "log4j.properties").write_text(
            "rootLogger.level = INFO\nrootLogger.appenderRef.out.ref = out\nappender.out.name = out\n"
            "appender.out.type = CONSOLE\nappender.out.layout.type = PatternLayout\n"
            "appender.out.layout.pattern = %d{HH:mm:ss,SSS} %-5p %-60c %x - %m%n\n"
        )
        self._run("jobmanager", "entrypoint.StandaloneSessionClusterEntrypoint", 500)
        self.wait_for(lambda: self.overview() is not None, "Flink's JobManager")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._rest}"

    def overview(self) -> dict[str, int] | None:
        try:
            return dict(httpx.get(f"http://{self.address}/overview", timeout=5).raise_for_status().json())
        except httpx.HTTPError:
            return None

    def jobs(self) -> list[dict[str, str]]:
        return list(httpx.get(f"http://{self.address}/jobs/overview", timeout=5).json()["jobs"])

    def list_unfinished(self) -> list[str]:
        """What of its jobs goes on."""
        ended = ("CANCELED", "FAILED", "FINISHED")
        return [job["jid"] for job in self.jobs() if job["state"] not in ended]

    def is_free(self, workers: int) -> bool:
        """Whether that many TaskManagers are there, and none of their slots is taken."""
        found = self.overview()
        return found is not None and found["slots-available"] == found["slots-total"] == workers

    def add_worker(self, name: str) -> None:
        settings = {
            "resource-id": f"{name}-{free_port()}",
            "host": "127.0.0.1",
            "numberOfTaskSlots": "1",
            "memory.network.min": "64m",
            "memory.network.max": "64m",
            "memory.task.heap.size": "300m",
            "memory.managed.size": "200m",
            "memory.framework.heap.size": "128m",
            "memory.framework.off-heap.size": "128m",
            "memory.task.off-heap.size": "0m",
            "memory.jvm-metaspace.size": "200m",
            "memory.jvm-overhead.min": "192m",
            "memory.jvm-overhead.max": "192m",
            "cpu.cores": "1",
        }
        flags = [f"-Dtaskmanager.{key}={value}" for key, value in settings.items()]
        self._run(name, "taskexecutor.TaskManagerRunner", 500, *flags)

    def _run(self, name: str, main: str, megabytes: int, *flags: str) -> None:
        settings = self.folder / "conf"
        common = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": str(self._rpc),
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": str(self._rest),
            "jobmanager.bind-host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "jobmanager.memory.process.size": "1000m",
            "io.tmp.dirs": str(self.folder / "tmp"),
            "blob.storage.directory": str(self.folder / "tmp"),
            "web.upload.dir": str(self.folder / "tmp"),
            # The timeout is Flink's default: on a busy machine only what is lost is silent for so long. A
            # TaskManager that was killed is noticed at once, by a call that it does not take.
            "heartbeat.timeout": "50000",
            "heartbeat.interval": "2000",
        }
        command = [
            *JAVA,
            f"-Xmx{megabytes}m",
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            f"-Dlog4j.configurationFile=file:{settings / 'log4j.properties'}",
            "-cp",
            self._jars,
            f"org.apache.flink.runtime.{main}",
            "--configDir",
            str(settings),
            *(f"-D{key}={value}" for key, value in common.items()),
            *self._restart,
            *flags,
        ]
        self.start(name, command)


class SparkCluster(Cluster):
    """A master; workers of one core each are started by name. `home` is a Spark."""

    def __init__(self, home: Path, folder: Path) -> None:
        super().__init__(folder)
        self._home = home
        self._port, self._web = free_port(), free_port()
        self._run("master", 300, "master.Master", "--port", f"{self._port}", "--webui-port", f"{self._web}")
        self.wait_for(lambda: self.status() is not None, "Spark's master")

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self._web}"

    def status(self) -> dict[str, Any] | None:
        try:
            return dict(httpx.get(f"{self.web}/json/", timeout=5).raise_for_status().json())
        except httpx.HTTPError:
            return None

    def list_unfinished(self) -> list[str]:
        """What of its applications goes on."""
        return [one["id"] for one in (self.status() or {}).get("activeapps", ())]

    def is_free(self, workers: int) -> bool:
        """Whether that many workers are there, and none of their cores is taken."""
        found = self.status()
        return found is not None and (found["cores"], found["coresused"]) == (workers, 0)

    def add_worker(self, name: str) -> None:
        sizes = ("--cores", "1", "--memory", "1500m", "--webui-port", "0")
        folder = ("--work-dir", str(self.folder / name))
        self._run(name, 300, "worker.Worker", *sizes, *folder, self.address)

    def _run(self, name: str, megabytes: int, main: str, *flags: str) -> None:
        command = [
            *JAVA,
            f"-Xmx{megabytes}m",
            "-cp",
            f"{self._home}/jars/*",
            f"org.apache.spark.deploy.{main}",
            "--host",
            "127.0.0.1",
            *flags,
        ]
        home = str(self._home)
        self.start(name, command, SPARK_HOME=home, SPARK_LOCAL_IP="127.0.0.1", SPARK_SCALA_VERSION="2.12")


@contextmanager
def job_server(jar: Path, folder: Path, *flags: str) -> Iterator[str]:
    """Beam's job server; yields its address."""
    cluster = Cluster(folder)
    port = free_port()
    ports = ("--job-port", str(port), "--artifact-port", "0", "--expansion-port", "0")
    artifacts = ("--artifacts-dir", str(folder / "tmp"), "--job-host=127.0.0.1")
    java = (*JAVA, "-Xmx700m", f"-Djava.io.tmpdir={folder / 'tmp'}")
    # That of Spark is the driver, which listens where the machine's name leads unless told otherwise.
    command = [*java, "-jar", str(jar), *ports, *artifacts, *flags]
    cluster.start("job-server", command, SPARK_LOCAL_IP="127.0.0.1")
    try:
        until(lambda: is_listening(port), "a job server")
        yield f"127.0.0.1:{port}"
    finally:
        cluster.close()


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class RealEngine:
    """A cluster of two workers, and the options of Beam that reach it through a job server."""

    name: str
    cluster: EngineCluster
    options: str

    @property
    def runner(self) -> str:
        return f"{self.name}Runner"

    def add_workers(self) -> None:
        for number in range(WORKERS):
            self.cluster.add_worker(f"worker-{number}")
        until(self.is_free, "two workers")

    def is_free(self) -> bool:
        return self.cluster.is_free(WORKERS)

    def has_ended_all(self) -> bool:
        return not self.cluster.list_unfinished()


@contextmanager
def running_flink(
    folder: Path, libraries: str = "TESTS_FLINK", server: str = "TESTS_FLINK_JOB_SERVER"
) -> Iterator[RealEngine]:
    """A JobManager and two TaskManagers of one slot, which ends a job that has lost one. The variables name
    its jars and those of its job server.
    """
    jar = path_from(server)
    cluster = FlinkCluster(path_from(libraries), folder)
    try:
        with job_server(jar, folder / "server", f"--flink-master={cluster.address}") as address:
            options = f"--flink_master={cluster.address} --job_endpoint={address}"
            yield RealEngine("Flink", cluster, options)
    finally:
        cluster.close()


@contextmanager
def running_spark(
    folder: Path, home: str = "TESTS_SPARK", server: str = "TESTS_SPARK_JOB_SERVER"
) -> Iterator[RealEngine]:
    """A master and two workers of one core. The variables name its folder and the jar of its job server."""
    jar = path_from(server)
    cluster = SparkCluster(path_from(home), folder)
    try:
        with job_server(jar, folder / "server", f"--spark-master-url={cluster.address}") as address:
            options = (
                f"--spark_master_url={cluster.address} --spark_master_webui={cluster.web} "
                f"--job_endpoint={address}"
            )
            yield RealEngine("Spark", cluster, options)
    finally:
        cluster.close()


ENGINES = {"Flink": running_flink, "Spark": running_spark}
