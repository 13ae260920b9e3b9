"""What is posted to Dataflow: Beam's own client talks to a server that records it, and says the job runs."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from batch.beam import pipeline, remote, runners
from batch.beam.model_handler import SharedModel
from batch.beam.pipeline import PipelinePlan
from batch.beam.runners import RunnerRequest
from batch.failures import ErrorLimit
from batch.messages import ModelSource
from batch.records.input_shards import Shard
from serving.artifacts.storage import FileStore
from tests.bounds import HANG_SECONDS
from tests.emulator import Emulator

pytestmark = [
    pytest.mark.filterwarnings("ignore:Please install grpcio-status:ImportWarning"),
    pytest.mark.filterwarnings("ignore:unclosed.*socket:ResourceWarning"),
    # Beam's client for Cloud Storage.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

JOB = {
    "id": "2026-11-27_1",
    "projectId": "proj",
    "location": "europe-west1",
    "currentStateTime": "2026-11-27T00:00:00Z",
}
JOBS = "/v1b3/projects/proj/locations/europe-west1/jobs"
# The number of JOB_STATE_CANCELLED.
CANCELLED = 5


class Dataflow:
    """Takes one job, sends this process SIGTERM once that is asked for, and ends it when it is told to."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str, dict[str, Any]]] = []
        self.state = "JOB_STATE_RUNNING"
        self.posted: dict[str, Any] = {}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.recorded.append((method, path, body))
        path = path.partition("?")[0]
        if method == "POST" and path.endswith("/jobs"):
            self.posted = body
        elif method == "PUT":
            self.state = "JOB_STATE_CANCELLED"
        elif path.endswith("/messages"):
            return {}
        elif path.endswith("/metrics"):
            return {"metricTime": JOB["currentStateTime"], "metrics": []}
        elif self.state == "JOB_STATE_RUNNING":
            os.kill(os.getpid(), signal.SIGTERM)
        return {**JOB, "name": self.posted.get("name", ""), "currentState": self.state}


@contextmanager
def serve(dataflow: Dataflow) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.dumps(dataflow.answer(self.command, self.path, json.loads(data or b"{}"))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_GET  # noqa: N815  names that http.server looks for

        def log_message(self, *_: object) -> None:
            """A test needs none."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_job_is_posted_and_cancelled(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under its own name, with its packages in the bucket and as many workers as it may have."""
    bucket = f"gs://{emulator.bucket()}"
    folder = f"{bucket}/out/.pilotlight/u1/plan"
    dataflow = Dataflow()
    plan = PipelinePlan(
        FileStore(), [Shard(0, ())], "JSON", "JSON", SharedModel(ModelSource(), "", 0), {}, 0, (), folder, ""
    )
    ended: list[int] = []

    def end_process(code: int) -> None:
        ended.append(code)
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", end_process)
    # Beam leaves folders there.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with serve(dataflow) as endpoint:
        options = (
            f"--dataflow_endpoint={endpoint}",
            "--project=proj",
            "--no_auth",
            "--sdk_container_image=image",
        )
        found = runners.create_remote_runner(
            RunnerRequest(
                runner="DataflowRunner",
                arguments=options,
                job="projects/p/jobs/nightly",
                uid="u1",
                workers=7,
                region="europe-west1",
                folder=folder,
                paths=(bucket,),
            )
        )
        context = pipeline.RunContext(
            ErrorLimit(), 100, lambda _: None, pytest.fail, lambda failed: pytest.fail(failed.message)
        )
        with pytest.raises(SystemExit):
            remote.run_remote(plan, found, list, context)
        for thread in threading.enumerate():
            # Beam asks on until the job has ended: the server must be there as long.
            if "poll_for_job_completion" in thread.name:
                thread.join(HANG_SECONDS)

    posted = dataflow.posted
    pool = posted["environment"]["workerPools"][0]
    assert posted["name"] == "pilotlight-nightly-u1"
    assert any(path.startswith(JOBS) for method, path, _ in dataflow.recorded if method == "POST")
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 7
    assert pool["sdkHarnessContainerImages"][0]["containerImage"] == "image"
    staged = posted["environment"]["tempStoragePrefix"]
    assert f"{emulator.url}" not in staged
    assert folder.removeprefix("gs://") in staged
    cancels = [(path, body) for method, path, body in dataflow.recorded if method == "PUT"]
    assert [body["requestedState"] for _, body in cancels] == [CANCELLED]
    assert cancels[0][0].startswith(f"{JOBS}/2026-11-27_1")
    assert ended == [128 + signal.SIGTERM]
