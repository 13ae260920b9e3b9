"""A Kubernetes control plane on loopback: etcd, API server, controllers and scheduler, with kubectl and helm.

All of them are one program, which `make cluster` builds of their Go modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loadtests.bench.targets.servers import find_free_port
from tests.server import until

SOURCE = Path(__file__).parent / "controlplane"
VERSION = "1.37.2"
_PROGRAM = SOURCE.parents[2] / "build" / "cluster" / "controlplane"
_START_SECONDS = 120.0
# Of a Service: nothing listens there, `tests/cluster/service_proxy.py` has an address of its own.
_SERVICE_RANGE = "10.99.0.0/24"


def build_control_plane() -> Path:
    """The program, built when its source is newer: about 15 minutes of processor time the first time.

    Skips where there is no Go.
    """
    newest = max(path.stat().st_mtime for path in SOURCE.iterdir())
    if _PROGRAM.exists() and _PROGRAM.stat().st_mtime > newest:
        return _PROGRAM
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: the control plane is built with it")
    major, minor, _ = VERSION.split(".")
    variables = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in variables.items())
    _PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    print("== building the control plane (15 minutes of processor time)", file=sys.stderr, flush=True)
    subprocess.run(
        [go, "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", _PROGRAM, "."],
        cwd=SOURCE,
        env=os.environ | {"CGO_ENABLED": "0"},
        check=True,
    )
    return _PROGRAM


@dataclass
class ControlPlane:
    """A running one. `folder` has its data and logs."""

    program: Path
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    port: int = field(default_factory=find_free_port)
    _etcd_port: int = field(default_factory=find_free_port)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def start(self) -> None:
        """Returns once all of it is healthy."""
        self.folder.mkdir(parents=True)
        key = self.folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        self.kubeconfig.write_text(yaml.safe_dump(self._describe_access()))
        etcd, peers = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{find_free_port()}"
        self._run(
            "etcd", f"--data-dir={self.folder / 'etcd'}", "--unsafe-no-fsync",
            f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        )  # fmt: skip
        self.start_api_server()
        for name in ("kube-controller-manager", "kube-scheduler"):
            port = find_free_port()
            # The file of the API server's certificate has its authority too.
            authority = self.folder / "certificates" / "apiserver.crt"
            keys = [f"--service-account-private-key-file={key}", f"--root-ca-file={authority}"]
            more = keys if "controller" in name else []
            self._run(
                name, f"--kubeconfig={self.kubeconfig}", "--bind-address=127.0.0.1", f"--secure-port={port}",
                f"--cert-dir={self.folder / name}", "--leader-elect=false", *more,
            )  # fmt: skip
            self._wait_until_healthy(name, f"https://127.0.0.1:{port}/healthz")

    def start_api_server(self) -> None:
        """For the first time, or again."""
        key = self.folder / "accounts.key"
        self._run(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}",
            f"--cert-dir={self.folder / 'certificates'}", f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--service-account-issuer={self.url}", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--authorization-mode=RBAC",
            f"--service-cluster-ip-range={_SERVICE_RANGE}", "--endpoint-reconciler-type=none",
        )  # fmt: skip
        self._wait_until_healthy("kube-apiserver", f"{self.url}/readyz")

    def stop_api_server(self) -> None:
        process = self._processes.pop("kube-apiserver")
        process.terminate()
        process.wait()

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """What it prints; `given` is its standard input."""
        return self._call(["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments], given)

    def helm(self, *arguments: str) -> str:
        home = self.folder / "helm"
        folders = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        return self._call(["helm", f"--kubeconfig={self.kubeconfig}", *arguments], None, folders)

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` tells as JSON."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def is_allowed(self, verb: str, resource: str, subresource: str, user: str) -> bool:
        """Whether somebody may do something to `resource`, as TYPE.GROUP/NAME."""
        kind, _, name = resource.partition("/")
        plural, _, group = kind.partition(".")
        attributes = {
            "namespace": "default",
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
            "name": name,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        answer = self.kubectl("create", "--filename=-", "--output=json", given=json.dumps(review))
        return bool(json.loads(answer)["status"]["allowed"])

    def _call(self, words: Sequence[str], given: str | None, more: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [self.program, *words],
            input=given,
            capture_output=True,
            text=True,
            env=os.environ | dict(more or {}),
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self.program, name, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait_until_healthy(self, name: str, url: str) -> None:
        process = self._processes[name]

        def is_healthy() -> bool:
            assert process.poll() is None, (self.folder / f"{name}.log").read_text()[-2000:]
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(url, headers=self.headers, verify=False).status_code == 200
            return False

        until(is_healthy, f"{name} is healthy", seconds=_START_SECONDS)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def _describe_access(self) -> Mapping[str, Any]:
        """A kubeconfig."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "admin"}}],
            "current-context": "c",
        }


@contextlib.contextmanager
def running_control_plane(folder: Path) -> Iterator[ControlPlane]:
    control_plane = ControlPlane(build_control_plane(), folder)
    try:
        control_plane.start()
        yield control_plane
    finally:
        control_plane.stop()
