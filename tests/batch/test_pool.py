"""The pool of workers: what starts, what cannot, and what ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from google.protobuf import struct_pb2

from batch import boot, worker_signs
from batch import pool as batch_pool
from batch.pool import BootProcess, WorkerPool, is_loopback, main, start_server
from batch.worker_signs import WorkerVersions
from serving.artifacts.storage import FileStore
from serving.scratch_folders import make_scratch_folder
from tests.bounds import HANG_SECONDS


class Provision(beam_provision_api_pb2_grpc.ProvisionServiceServicer):
    """Tells workers the experiments of their job."""

    def __init__(self, *experiments: str) -> None:
        self.options = struct_pb2.Struct()
        self.options.update({"beam:option:experiments:v1": list(experiments)})

    def GetProvisionInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        info = beam_provision_api_pb2.ProvisionInfo(pipeline_options=self.options)
        return beam_provision_api_pb2.GetProvisionInfoResponse(info=info)


@contextmanager
def provisioned(service: Provision) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    beam_provision_api_pb2_grpc.add_ProvisionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0)


@contextmanager
def pool(limit: int = 4, token: str = "") -> Iterator[Any]:
    """A client of a pool."""
    workers = WorkerPool(limit, token=token)
    server, port = start_server("127.0.0.1", 0, workers)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
    finally:
        server.stop(0)
        workers.close()


def start(client: Any, endpoint: str, **params: str) -> str:
    """The error of a worker's start."""
    described = endpoints_pb2.ApiServiceDescriptor(url=endpoint)
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id="1-1",
        provision_endpoint=described,
        control_endpoint=described,
        logging_endpoint=described,
        params=params,
    )
    return str(client.StartWorker(request, timeout=HANG_SECONDS).error)


def test_a_worker_of_other_versions_is_not_started(tmp_path: Path) -> None:
    """The engine and the job are told which are where. More than the limit are refused."""
    other = boot.format_experiment(str(tmp_path)).replace("beam=2.", "beam=1.")
    with provisioned(Provision("beam_fn_api", other)) as endpoint, pool() as client, pool(0) as full:
        error = start(client, endpoint)
        refused = start(full, endpoint)

    assert error.startswith("The worker has ended with code 3: The worker on ")
    assert "Install the same versions on both sides." in error
    [sign] = worker_signs.read_signs(FileStore(), str(tmp_path))
    assert sign.trouble in error
    assert refused == "This pool runs 0 workers already, its --max-workers."


class Idle:
    """A worker that waits to be ended."""

    def __init__(self, _: Any) -> None:
        self.is_ended = False

    def is_alive(self) -> bool:
        return not self.is_ended

    def wait_until_ready(self) -> str:
        return ""

    def end(self) -> None:
        self.is_ended = True


class Caller:
    """What gRPC tells of a caller."""

    def __init__(self, address: str) -> None:
        self._address = address

    def peer(self) -> str:
        return self._address


START = beam_fn_api_pb2.StartWorkerRequest(worker_id="1-1")
STOP = beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1")


class IdlePool:
    """A pool whose workers are idle."""

    def __init__(self) -> None:
        self.started: list[Idle] = []
        self.pool = WorkerPool(start=self._start)

    def _start(self, request: Any) -> Idle:
        self.started.append(Idle(request))
        return self.started[-1]

    def find_ended(self) -> list[bool]:
        return [one.is_ended for one in self.started]


def test_a_worker_is_not_stopped_for_another_of_the_same_name() -> None:
    """Two TaskManagers share the pool, and each has a worker 1-1."""
    idle, caller = IdlePool(), Caller("ipv4:127.0.0.1:40000")
    for _ in range(2):
        idle.pool.StartWorker(START, caller)

    idle.pool.StopWorker(STOP, caller)
    assert idle.find_ended() == [False, False]

    idle.started[0].end()
    idle.pool.StopWorker(STOP, caller)
    assert idle.find_ended() == [True, True]


def test_a_worker_is_stopped_for_the_machine_that_asked_for_it() -> None:
    """Its name can be guessed; the port of the caller changes."""
    idle = IdlePool()
    idle.pool.StartWorker(START, Caller("ipv4:10.0.0.1:40000"))

    idle.pool.StopWorker(STOP, Caller("ipv4:10.0.0.2:40000"))
    assert idle.find_ended() == [False]

    idle.pool.StopWorker(STOP, Caller("ipv4:10.0.0.1:50000"))
    assert idle.find_ended() == [True]


def test_the_files_of_workers_that_have_ended_go_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models and packages, of killed workers too; those of workers that live stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from serving.scratch_folders import make_scratch_folder; print(make_scratch_folder('packages'))"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    made = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    left, used = Path(made.stdout.decode().strip()), make_scratch_folder("packages")
    assert left.is_relative_to(tmp_path)

    idle, caller = IdlePool(), Caller("ipv4:127.0.0.1:40000")
    idle.pool.StartWorker(START, caller)
    assert left.exists()
    idle.pool.StopWorker(STOP, caller)

    assert not left.exists()
    assert used.exists()


def test_a_pool_with_a_token_starts_workers_for_those_who_know_it(tmp_path: Path) -> None:
    """Others start no process."""
    other = boot.format_experiment(str(tmp_path)).replace("beam=2.", "beam=1.")
    with provisioned(Provision(other)) as endpoint, pool(token="0123456789abcdef") as client:
        refused = [start(client, endpoint), start(client, endpoint, token="0123456789abcdeF")]
        error = start(client, endpoint, token="0123456789abcdef")

    assert all(one.startswith("This worker pool takes only jobs that know its token") for one in refused)
    assert "Install the same versions on both sides." in error
    assert len(worker_signs.read_signs(FileStore(), str(tmp_path))) == 1


@pytest.mark.parametrize(
    ("host", "safe"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_known(host: str, safe: bool) -> None:
    """By address and by name; what listens everywhere is not loopback."""
    assert is_loopback(host) is safe


@pytest.mark.parametrize(
    ("flags", "token", "said"),
    [
        ((), None, "a --host that is not loopback needs --token-file=FILE."),
        (("--token-file",), "short", "a token has 16 characters or more."),
    ],
)
def test_a_pool_for_other_machines_needs_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], token: str | None, said: str
) -> None:
    """It says so and does not begin to listen."""
    file = tmp_path / "token"
    if token is not None:
        file.write_text(token)
    with pytest.raises(SystemExit) as ended:
        main(["--host", "0.0.0.0", "--port", "0", *(part for flag in flags for part in (flag, str(file)))])

    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_port_has_one_pool(capsys: pytest.CaptureFixture[str]) -> None:
    """A second one would get some of the calls."""
    workers = WorkerPool()
    server, port = start_server("127.0.0.1", 0, workers)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["--port", str(port)])
    finally:
        server.stop(0)

    assert ended.value.code == 1
    assert f"The pool cannot listen on 127.0.0.1:{port}: is the port taken?" in capsys.readouterr().err


def test_versions_that_differ_are_named() -> None:
    """Python counts without its last number."""
    ours = WorkerVersions.of_this_process()

    assert ours.explain_difference(ours) == ""
    assert f"the job has Python {ours.python} and Beam 2.1.0." in ours.explain_difference(
        WorkerVersions(ours.python, "2.1.0")
    )


def test_a_worker_ends_with_the_process_that_started_it() -> None:
    """As when a TaskManager is killed: it has the other end of the worker's stdin."""
    with provisioned(Provision()) as endpoint:
        flags = ["--id=1-1", f"--provision_endpoint={endpoint}", "--control_endpoint=127.0.0.1:1"]
        worker = subprocess.Popen(
            [sys.executable, "-m", "batch.boot", *flags],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with worker:
            assert worker.stdin is not None
            worker.stdin.close()

            assert worker.wait(HANG_SECONDS) == 3


def start_program(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> BootProcess:
    """A worker whose interpreter is this program."""
    script = folder / "python"
    script.write_text(f"#!{sys.executable}\nimport os, subprocess, sys, time\n{program}\n")
    script.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(script))
        return BootProcess(beam_fn_api_pb2.StartWorkerRequest(worker_id="1-1"))


def test_a_worker_that_gives_up_and_lives_on_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_pool, "_END_WITHIN", 0.2)
    worker = start_program(tmp_path, monkeypatch, "os.closerange(3, 256); time.sleep(100)")
    try:
        assert "did not end within" in worker.wait_until_ready()
    finally:
        worker.end()


def test_what_a_worker_has_started_may_hold_its_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's end is not theirs. A line without an end takes no memory."""
    program = (
        "child = subprocess.Popen(['sleep', '100'], stdin=subprocess.DEVNULL)\n"
        "sys.stderr.write('x' * 200_000 + '\\n' + str(child.pid) + '\\n')"
    )
    monkeypatch.setattr(batch_pool, "_END_WITHIN", 0.2)
    worker = start_program(tmp_path, monkeypatch, program)
    error = worker.wait_until_ready()
    begun = time.monotonic()
    worker.end()
    took = time.monotonic() - begun
    while len(worker._tail) < 5:
        time.sleep(0.01)
    os.kill(int(worker._tail[-1]), signal.SIGKILL)
    worker._reader.join()
    assert took < 50
    assert "has ended with code 0" in error
    assert max(map(len, worker._tail)) == 1 << 16
