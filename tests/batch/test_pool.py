"""The pool of workers: what starts, what cannot, and what ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from apache_beam.portability.api import (
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from google.protobuf import struct_pb2

from batch import boot, worker_signs
from batch.pool import WorkerPool, serve
from batch.worker_signs import WorkerVersions
from serving.artifacts.storage import FileStore


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
def pool(limit: int = 4) -> Iterator[Any]:
    """A client of a pool."""
    workers = WorkerPool(limit)
    server, port = serve("127.0.0.1", 0, workers)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
    finally:
        server.stop(0)
        workers.close()


def start(client: Any, endpoint: str, worker: str = "1-1") -> str:
    """The error of a worker's start."""
    described = endpoints_pb2.ApiServiceDescriptor(url=endpoint)
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id=worker, provision_endpoint=described, control_endpoint=described, logging_endpoint=described
    )
    return str(client.StartWorker(request, timeout=100).error)


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


def test_a_worker_is_not_stopped_for_another_of_the_same_name() -> None:
    """Two TaskManagers share the pool, and each has a worker 1-1."""
    started: list[Idle] = []

    def start_idle(request: Any) -> Idle:
        started.append(Idle(request))
        return started[-1]

    workers = WorkerPool(start=start_idle)
    stop = beam_fn_api_pb2.StopWorkerRequest(worker_id="1-1")
    for _ in range(2):
        workers.StartWorker(beam_fn_api_pb2.StartWorkerRequest(worker_id="1-1"), None)

    workers.StopWorker(stop, None)
    assert [one.is_ended for one in started] == [False, False]

    started[0].end()
    workers.StopWorker(stop, None)
    assert started[1].is_ended


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

            assert worker.wait(100) == 3
