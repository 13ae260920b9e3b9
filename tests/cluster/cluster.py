"""The chart on a control plane: two nodes whose pods are processes, PostgreSQL, and the way to the pods."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from loadtests.bench.targets.servers import find_free_port
from tests.certificates import write_certificate
from tests.cluster.control_plane import ControlPlane, running_control_plane
from tests.dockerfile import ROOT
from tests.postgres import running_postgres
from tests.server import until

RELEASE = "pilotlight"
NODES = ("one", "two")
_CHART = ROOT / "serving" / "containers" / "chart"
_IMAGE = "pilotlight-server:test"
# Of a block for documentation: they are on the loopback device while a pod has them.
_SUBNETS = ("198.51.100", "203.0.113")
_PILOTLIGHT = Path(sys.executable).parent / "pilotlight"
_INSTALL_SECONDS = 180
_SELECTOR = "app.kubernetes.io/name=pilotlight"
# Seconds until a server that is asked to stop, and has no request left, has ended.
STOP_DELAY = 4
# Seconds until a version without requests sleeps.
IDLE_TIMEOUT = 5


@dataclass
class Cluster:
    """`url` is the address of the Service as seen from here."""

    control_plane: ControlPlane
    folder: Path
    url: str
    database: str
    token: str = ""
    _http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60))

    def close(self) -> None:
        self._http.close()

    def install(self, **values: Any) -> None:
        """Install the chart, and wait until its pods are ready."""
        self.control_plane.kubectl(
            "create", "secret", "generic", "database", f"--from-literal=url={self.database}"
        )
        certificates = self.folder / "certificates"
        certificates.mkdir()
        write_certificate(certificates)
        # One certificate for all, which is its own authority.
        self.control_plane.kubectl(
            "create", "secret", "generic", "peers",
            f"--from-file=ca.crt={certificates / 'cert.pem'}",
            f"--from-file=tls.crt={certificates / 'cert.pem'}",
            f"--from-file=tls.key={certificates / 'key.pem'}",
        )  # fmt: skip
        self.change(**values)

    def change(self, **values: Any) -> None:
        """The release's values, and wait until its pods are ready."""
        repository, _, tag = _IMAGE.partition(":")
        given = {
            "image": {"repository": repository, "tag": tag},
            "database": {"existingSecret": "database"},
            "peers": {"existingSecret": "peers"},
            "stopDelay": STOP_DELAY,
            "settings": {"shared_versions_uri": str(self.folder / "shared"), "idle_timeout": IDLE_TIMEOUT},
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
        } | values
        file = self.folder / "values.json"
        file.write_text(json.dumps(given))
        self.control_plane.helm(
            "upgrade", "--install", RELEASE, str(_CHART), "--values", str(file),
            "--wait", "--timeout", f"{_INSTALL_SECONDS}s", "--force-conflicts",
        )  # fmt: skip
        self.wait_until_settled()

    def scale(self, replicas: int) -> None:
        self.control_plane.kubectl("scale", f"deployment/{RELEASE}", f"--replicas={replicas}")
        until(lambda: len(self.list_ready()) == replicas, "the pods are ready", seconds=_INSTALL_SECONDS)
        self.wait_until_settled()

    def wait_until_settled(self) -> None:
        """Until no old pod is left."""
        self.control_plane.kubectl(
            "rollout", "status", f"deployment/{RELEASE}", f"--timeout={_INSTALL_SECONDS}s"
        )
        until(lambda: len(self.list_pods()) == len(self.list_ready()), "old pods have gone", seconds=120)

    def list_pods(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.control_plane.get("pods", "--selector", _SELECTOR)["items"]
        return found

    def list_ready(self) -> list[str]:
        """The names of the pods that are ready and stay."""
        return [
            pod["metadata"]["name"]
            for pod in self.list_pods()
            if "deletionTimestamp" not in pod["metadata"]
            and any(
                one["type"] == "Ready" and one["status"] == "True"
                for one in pod.get("status", {}).get("conditions", ())
            )
        ]

    def run_in_pod(self, pod: str, *words: str) -> str:
        """What a command prints that runs with the variables of a pod, as `kubectl exec` would run it."""
        environment = json.loads((self.folder / "pods" / pod / "environment.json").read_text())
        return subprocess.run(
            [_PILOTLIGHT, *words],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def create_token(self) -> None:
        """In one pod; returns when all know it."""
        created = self.run_in_pod(self.list_ready()[0], "tokens", "create", "user:admin@localhost")
        self.token = next(word for word in created.split() if word.startswith("plt_"))
        for pod in self.list_pods():
            url = f"http://{pod['status']['podIP']}:8080/v1/projects/p/models"
            knows = lambda url=url: httpx.get(url, headers=self.headers).status_code == 200  # noqa: E731
            until(knows, "it knows the token")

    def signal_pod(self, pod: str, number: signal.Signals) -> None:
        """To the server of a pod and all that it has started."""
        status = self.control_plane.get("pod", pod)["status"]["containerStatuses"][0]
        os.killpg(int(status["containerID"].removeprefix("process://")), number)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer by way of the Service; the test fails when it is an error."""
        answer = self._http.request(method, f"{self.url}/v1/{path}", json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def deploy(self, model: str, folder: Path) -> None:
        """A model with one version, v."""
        parent, _, name = model.rpartition("/")
        self.call("POST", parent, {"name": name})
        self.create_version(f"{model}/versions/v", folder)

    def create_version(self, name: str, folder: Path) -> None:
        parent, _, version = name.rpartition("/")
        body = {"name": version, "deploymentUri": str(folder), "framework": "SCIKIT_LEARN"}
        self.wait(self.call("POST", parent, body)["name"])

    def wait(self, operation: str) -> None:
        """Until it is done; the test fails when it has failed."""
        found = until(lambda: self._find_done(operation), f"{operation} is done", seconds=_INSTALL_SECONDS)
        assert "error" not in found, found

    def _find_done(self, operation: str) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] = self.call("GET", operation)
        return found if found.get("done") else None


@contextlib.contextmanager
def running_cluster(folder: Path, **values: Any) -> Iterator[Cluster]:
    """With the chart installed, and a token of an admin's. Skips where it cannot be run."""
    if os.geteuid():
        pytest.skip("pods get addresses on the loopback device, for which one has to be root")
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(running_postgres())
        control_plane = stack.enter_context(running_control_plane(folder / "control"))
        for node, subnet in zip(NODES, _SUBNETS, strict=True):
            config = folder / f"{node}.json"
            config.write_text(
                json.dumps(
                    {
                        "url": control_plane.url,
                        "token": control_plane.token,
                        "node": node,
                        "subnet": subnet,
                        "folder": str(folder),
                        "images": {_IMAGE: [str(_PILOTLIGHT), "serve"]},
                    }
                )
            )
            stack.enter_context(running_part(folder, "tests.cluster.kubelet", str(config)))
        port = find_free_port()
        access = (control_plane.url, control_plane.token)
        proxy = ("tests.cluster.service_proxy", *access, "default", RELEASE, str(port))
        stack.enter_context(running_part(folder, *proxy))
        cluster = Cluster(control_plane, folder, f"http://127.0.0.1:{port}", postgres.create_database())
        stack.callback(cluster.close)
        cluster.install(**values)
        cluster.create_token()
        yield cluster


@contextlib.contextmanager
def running_part(folder: Path, module: str, *arguments: str) -> Iterator[None]:
    """A program of these tests, until SIGTERM."""
    with (folder / f"{module}.log").open("ab") as log:
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
