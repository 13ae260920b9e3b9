"""`pilotlight serve` with one deployed version, until SIGTERM; then nothing of it is left.

    python -m loadtests.bench.gateway --port 8080 --model-dir FOLDER

The folder becomes version v1 of the model `m` of project `p`, with one node, no more and no less; ask
`POST /v1/projects/p/models/m:predict`. State is kept in a temporary folder. Options that are not known here
go to `pilotlight serve`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtests.bench.targets.processes import MARK, exit_on_sigterm, pin_process, run_process

PREDICT_PATH = "/v1/projects/p/models/m:predict"
PILOTLIGHT = [sys.executable, "-c", "from serving.cli import main; main()"]
_START_SECONDS = 60.0
_DEPLOY_SECONDS = 120.0


def main() -> int:
    """Serve until SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.gateway",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument("--model-dir", type=Path, required=True, help="folder of the model")
    parser.add_argument("--model", default="m", help="name that it gets (default: m)")
    parser.add_argument(
        "--node-core", type=int, metavar="N", help="move the node there, away from the gateway"
    )
    options, more = parser.parse_known_args()
    exit_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="pilotlight-bench-") as state:
        # Nodes get few variables; the mark tells whoever runs us which processes are ours.
        environment = {"PILOTLIGHT_NODE_ENVIRONMENT": MARK} if MARK in os.environ else {}
        command = [*PILOTLIGHT, "serve", "--port", str(options.port), "--state-dir", state, *more]
        with run_process(command, environment) as process:
            server = ControlClient(options.port)
            server.wait_until_ready(process.poll)
            server.deploy(options.model_dir, options.model)
            if options.node_core is not None:
                for pid in server.list_node_pids():
                    pin_process(pid, options.node_core)
            print(f"Serving {options.model} on port {options.port}", flush=True)
            return process.wait()


class ControlClient:
    """A client of the parts of the control API that benchmarks need."""

    def __init__(self, port: int) -> None:
        self._port = port

    def wait_until_ready(self, ended: Any) -> None:
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.call_api("GET", "/readyz")
            except (OSError, http.client.HTTPException) as error:
                if ended() is not None or time.monotonic() > end:
                    raise SystemExit(f"the server did not start: {error!r}") from error
                time.sleep(0.02)
            else:
                return

    def deploy(
        self, model_dir: Path, model: str, scaling: Mapping[str, int] = {"minNodes": 1, "maxNodes": 1}
    ) -> None:
        self.call_api("POST", "/v1/projects/p/models", {"name": model})
        version = {
            "name": "v1",
            "deploymentUri": str(model_dir.resolve()),
            "autoScaling": dict(scaling),
        }
        operation = self.call_api("POST", f"/v1/projects/p/models/{model}/versions", version)
        end = time.monotonic() + _DEPLOY_SECONDS
        while not operation.get("done") and time.monotonic() < end:
            time.sleep(0.05)
            operation = self.call_api("GET", f"/v1/{operation['name']}")
        if "response" not in operation:
            raise SystemExit(f"the version was not deployed: {operation}")

    def list_node_pids(self) -> list[int]:
        versions = self.call_api("GET", "/nodes")["versions"]
        return [node["pid"] for version in versions for node in version["nodes"] if node["pid"]]

    def call_api(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise http.client.HTTPException(f"{method} {path}: {answer.status} {content[:300]!r}")
        return json.loads(content) if content.startswith(b"{") else content


if __name__ == "__main__":
    sys.exit(main())
