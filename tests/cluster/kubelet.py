"""A kubelet for tests: it runs the pods of a node as processes of this machine.

    python -m tests.cluster.kubelet CONFIG

It has what the chart needs: an address per pod on the loopback device, commands by image, variables from
fields and Secrets, the address of the API server, folders with Secrets, ConfigMaps and tokens, the three
probes over HTTP, restarts, SIGTERM and grace periods. The folder `pods/NAME` of a pod has its log and, in
`environment.json`, the variables that its program got.

Pods share this machine, so what a container takes for its own is put in its place: in variables paths below a
mounted volume, but for /tmp, which is the machine's, and the address 0.0.0.0, which is the pod's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

_MERGE = {"content-type": "application/strategic-merge-patch+json"}
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_SECONDS, _RENEW_SECONDS = 40, 10.0
_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "110"}
_BACKOFF_SECONDS, _MOST_BACKOFF, _STABLE_SECONDS = 0.5, 10.0, 10.0
_RETRY_SECONDS = 0.5
_PROBE_DEFAULTS = {"periodSeconds": 10, "timeoutSeconds": 1, "failureThreshold": 3, "initialDelaySeconds": 0}


@dataclass(frozen=True)
class KubeletConfig:
    """`subnet` is the first three parts of its pods' addresses, `images` has the command of each image."""

    url: str
    token: str
    node: str
    subnet: str
    folder: Path
    images: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls, path: Path) -> KubeletConfig:
        values = json.loads(path.read_text())
        return cls(**values | {"folder": Path(values["folder"])})


@dataclass
class ProbeState:
    """A probe's results in a row. It has passed until it fails often enough, or the other way round."""

    settings: Mapping[str, Any]
    passed: bool
    others: int = 0

    def note(self, good: bool) -> bool:
        """Whether the result has changed."""
        if good == self.passed:
            self.others = 0
            return False
        self.others += 1
        needed = self.settings["failureThreshold"] if self.passed else 1
        if self.others < needed:
            return False
        self.passed, self.others = good, 0
        return True


@dataclass
class Pod:
    """One pod with one container, from the moment it is bound until it is gone."""

    kubelet: Kubelet
    pod: Mapping[str, Any]
    address: str
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    ready: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    started: str = ""

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/pods/{self.name}"

    @property
    def container(self) -> Mapping[str, Any]:
        container: Mapping[str, Any] = self.pod["spec"]["containers"][0]
        return container

    @property
    def folder(self) -> Path:
        return self.kubelet.config.folder / "pods" / self.name

    async def live(self) -> None:
        """Run the program again and again until the pod is deleted."""
        set_address("add", self.address)
        self.started = format_time()
        backoff = _BACKOFF_SECONDS
        while not self.stopping.is_set():
            environment = await self._build_environment()
            command = self.container.get("command") or self.kubelet.config.images[self.container["image"]]
            begin = time.monotonic()
            with (self.folder / "log").open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    *command, *self.container.get("args", []), cwd=self.folder, env=environment,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            probes = asyncio.create_task(self._probe())
            status = await self.process.wait()
            probes.cancel()
            self.ready = False
            if self.stopping.is_set():
                break
            self.restarts += 1
            await self._tell({"waiting": {"reason": "CrashLoopBackOff", "message": f"ended with {status}"}})
            steady = time.monotonic() - begin > _STABLE_SECONDS
            backoff = _BACKOFF_SECONDS if steady else min(2 * backoff, _MOST_BACKOFF)
            await asyncio.sleep(backoff)

    async def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL when the time is over; then the pod is gone."""
        if self.stopping.is_set():
            return
        self.stopping.set()
        await self._end_process(grace)
        uid = self.pod["metadata"]["uid"]
        await self.kubelet.send("DELETE", self.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
        set_address("del", self.address)

    def kill(self) -> None:
        """At once, when the kubelet ends."""
        self.stopping.set()
        if self.process is not None and self.process.returncode is None:
            signal_group(self.process, signal.SIGKILL)
        set_address("del", self.address)

    async def _end_process(self, grace: float) -> None:
        process = self.process
        if process is None or process.returncode is not None:
            return
        signal_group(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace)
        except TimeoutError:
            signal_group(process, signal.SIGKILL)
            await process.wait()

    # ---- what the program is given

    async def _build_environment(self) -> Mapping[str, str]:
        volumes = await self._make_volumes()
        server = httpx.URL(self.kubelet.config.url)
        found = {"KUBERNETES_SERVICE_HOST": server.host, "KUBERNETES_SERVICE_PORT": str(server.port)}
        for variable in self.container.get("env", []):
            value = await self._read_value(variable)
            if value == "0.0.0.0":
                value = self.address
            for mounted, folder in volumes.items():
                if value == mounted or value.startswith(f"{mounted}/"):
                    value = str(folder) + value.removeprefix(mounted)
            found[variable["name"]] = value
        (self.folder / "environment.json").write_text(json.dumps(found))
        return os.environ | found

    async def _read_value(self, variable: Mapping[str, Any]) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return str(variable.get("value", ""))
        if (field_ref := source.get("fieldRef")) is not None:
            metadata = self.pod["metadata"]
            fields = {
                "metadata.name": metadata["name"],
                "metadata.namespace": metadata["namespace"],
                "spec.nodeName": self.kubelet.config.node,
                "status.podIP": self.address,
            }
            return str(fields[field_ref["fieldPath"]])
        reference = source["secretKeyRef"]
        return (await self._read_secret(reference["name"]))[reference["key"]].decode()

    async def _read_secret(self, name: str) -> Mapping[str, bytes]:
        path = f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/secrets/{name}"
        data = (await self.kubelet.send("GET", path)).json()["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}

    async def _read_projected(self, sources: Sequence[Mapping[str, Any]]) -> Mapping[str, bytes]:
        """Tokens of the pod's account, and texts of ConfigMaps once these are there, by the file's name."""
        found = {}
        for source in sources:
            if (token := source.get("serviceAccountToken")) is not None:
                found[token["path"]] = (await self._request_token(token["expirationSeconds"])).encode()
            else:
                config_map = source["configMap"]
                texts = await self._read_config_map(config_map["name"])
                found |= {item["path"]: texts[item["key"]].encode() for item in config_map["items"]}
        return found

    async def _request_token(self, seconds: int) -> str:
        namespace, account = self.pod["metadata"]["namespace"], self.pod["spec"]["serviceAccountName"]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = await self.kubelet.send("POST", path, {**kind, "spec": {"expirationSeconds": seconds}})
        return str(answer.json()["status"]["token"])

    async def _read_config_map(self, name: str) -> Mapping[str, str]:
        path = f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/configmaps/{name}"
        while True:
            answer = await self.kubelet.send("GET", path)
            if answer.status_code == 200:
                texts: Mapping[str, str] = answer.json()["data"]
                return texts
            await asyncio.sleep(_RETRY_SECONDS)

    async def _make_volumes(self) -> Mapping[str, Path]:
        """Where each is mounted, and the folder that it is."""
        folders = {}
        for volume in self.pod["spec"].get("volumes", []):
            folder = folders[volume["name"]] = self.folder / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            if (secret := volume.get("secret")) is not None:
                for key, value in (await self._read_secret(secret["secretName"])).items():
                    (folder / key).write_bytes(value)
            if (projected := volume.get("projected")) is not None:
                for path, value in (await self._read_projected(projected["sources"])).items():
                    (folder / path).write_bytes(value)
        self.folder.mkdir(parents=True, exist_ok=True)
        return {
            mount["mountPath"]: folders[mount["name"]]
            for mount in self.container.get("volumeMounts", [])
            if mount["mountPath"] != "/tmp"
        }

    # ---- probes

    async def _probe(self) -> None:
        """First that of the start, then the others beside each other."""
        await self.tell_running()
        if "startupProbe" in self.container:
            startup = self._read_probe("startupProbe", passed=False)
            failures = 0
            while not startup.passed:
                if startup.note(await self._ask(startup)):
                    break
                failures += 1
                if failures >= startup.settings["failureThreshold"]:
                    await self._end_process(self._read_grace(startup))
                    return
                await asyncio.sleep(startup.settings["periodSeconds"])
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_readiness())
            tasks.create_task(self._watch_liveness())

    async def _watch_readiness(self) -> None:
        if "readinessProbe" not in self.container:
            self.ready = True
            await self.tell_running()
            return
        probe = self._read_probe("readinessProbe", passed=False)
        while True:
            if probe.note(await self._ask(probe)):
                self.ready = probe.passed
                await self.tell_running()
            await asyncio.sleep(probe.settings["periodSeconds"])

    async def _watch_liveness(self) -> None:
        if "livenessProbe" not in self.container:
            return
        probe = self._read_probe("livenessProbe", passed=True)
        while True:
            await asyncio.sleep(probe.settings["periodSeconds"])
            if probe.note(await self._ask(probe)):
                await self._end_process(self._read_grace(probe))
                return

    def _read_probe(self, name: str, *, passed: bool) -> ProbeState:
        return ProbeState(_PROBE_DEFAULTS | self.container[name], passed)

    def _read_grace(self, probe: ProbeState) -> float:
        whole = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        return float(probe.settings.get("terminationGracePeriodSeconds", whole))

    async def _ask(self, probe: ProbeState) -> bool:
        asked = probe.settings["httpGet"]
        ports = {port.get("name"): port["containerPort"] for port in self.container.get("ports", [])}
        url = f"http://{self.address}:{ports.get(asked['port'], asked['port'])}{asked['path']}"
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(timeout=probe.settings["timeoutSeconds"]) as client:
                return (await client.get(url)).status_code < 400
        return False

    # ---- what the API server is told

    async def tell_running(self) -> None:
        await self._tell({"running": {"startedAt": self.started}})

    async def _tell(self, state: Mapping[str, Any]) -> None:
        now, ready = format_time(), str(self.ready)
        conditions = {"Initialized": "True", "PodScheduled": "True", "ContainersReady": ready, "Ready": ready}
        process = self.process
        container = {
            "name": self.container["name"],
            "image": self.container["image"],
            "imageID": "process://",
            "containerID": f"process://{process.pid if process else 0}",
            "ready": self.ready,
            "started": True,
            "restartCount": self.restarts,
            "state": state,
        }
        status = {
            "phase": "Running",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": f"{self.kubelet.config.subnet}.254",
            "startTime": self.started,
            "conditions": [
                {"type": name, "status": value, "lastTransitionTime": now}
                for name, value in conditions.items()
            ],
            "containerStatuses": [container],
        }
        await self.kubelet.send("PATCH", f"{self.path}/status", {"status": status}, _MERGE)


class Kubelet:
    """Keeps its node alive, and runs the pods that are bound to it."""

    def __init__(self, config: KubeletConfig) -> None:
        self.config = config
        self._client = httpx.AsyncClient(
            base_url=config.url,
            verify=False,
            headers={"authorization": f"Bearer {config.token}"},
            timeout=httpx.Timeout(10, read=30),
        )
        self._pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses = self._iterate_addresses()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT; then all of its pods are killed."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        work = [asyncio.create_task(self._keep_node()), asyncio.create_task(self._watch_pods())]
        await asyncio.wait([asyncio.create_task(stop.wait()), *work], return_when=asyncio.FIRST_COMPLETED)
        for task in (*work, *self._tasks):
            task.cancel()
        for pod in self._pods.values():
            pod.kill()

    async def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Again and again while the API server is away. What it refuses is returned."""
        content = None if body is None else json.dumps(body)
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = await self._client.request(
                    method, path, content=content, headers=headers or {"content-type": "application/json"}
                )
                if answer.status_code < 500:
                    return answer
            await asyncio.sleep(_RETRY_SECONDS)

    async def _keep_node(self) -> None:
        name = self.config.node
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        await self.send("POST", "/api/v1/nodes", node)
        spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS}
        lease = {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec}
        await self.send("POST", _LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})
        while True:
            renewed = {"spec": {"renewTime": format_time("microseconds")}}
            await self.send("PATCH", f"{_LEASES}/{name}", renewed, _MERGE)
            await self.send(
                "PATCH", f"/api/v1/nodes/{name}/status", {"status": self._describe_node()}, _MERGE
            )
            await asyncio.sleep(_RENEW_SECONDS)

    def _describe_node(self) -> Mapping[str, Any]:
        now = format_time()
        pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
        conditions = [("Ready", "True"), *((name, "False") for name in pressures)]
        return {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "addresses": [{"type": "InternalIP", "address": f"{self.config.subnet}.254"}],
            "conditions": [
                {"type": kind, "status": value, "lastHeartbeatTime": now, "lastTransitionTime": now}
                for kind, value in conditions
            ],
        }

    async def _watch_pods(self) -> None:
        selector = {"fieldSelector": f"spec.nodeName={self.config.node}"}
        while True:
            with contextlib.suppress(httpx.HTTPError):
                listed = (await self._client.get("/api/v1/pods", params=selector)).json()
                present = {pod["metadata"]["uid"] for pod in listed["items"]}
                for uid in self._pods.keys() - present:
                    self._take("DELETED", self._pods[uid].pod)
                for pod in listed["items"]:
                    self._take("ADDED", pod)
                version = listed["metadata"]["resourceVersion"]
                watch = {**selector, "watch": "1", "resourceVersion": version}
                timeout = httpx.Timeout(10, read=None)
                async with self._client.stream("GET", "/api/v1/pods", params=watch, timeout=timeout) as lines:
                    async for line in lines.aiter_lines():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        self._take(event["type"], event["object"])
            await asyncio.sleep(_RETRY_SECONDS)

    def _take(self, event: str, found: Mapping[str, Any]) -> None:
        metadata = found["metadata"]
        pod = self._pods.get(metadata["uid"])
        if event == "DELETED":
            if pod is not None:
                del self._pods[metadata["uid"]]
                self._spawn(pod.stop(0))
        elif "deletionTimestamp" in metadata:
            if pod is not None:
                self._spawn(pod.stop(metadata.get("deletionGracePeriodSeconds", 30)))
        elif pod is None:
            pod = self._pods[metadata["uid"]] = Pod(self, found, next(self._addresses))
            self._spawn(pod.live())
        elif pod.ready and not is_ready(found):
            # The API server was away for so long that the controllers gave the node up.
            self._spawn(pod.tell_running())

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _iterate_addresses(self) -> Iterator[str]:
        while True:
            yield from (f"{self.config.subnet}.{number}" for number in range(1, 250))


def set_address(action: str, address: str) -> None:
    """Add an address to the loopback device, or delete it; nothing if that is so."""
    command = ["ip", "address", action, f"{address}/32", "dev", "lo"]
    subprocess.run(command, capture_output=True, check=False)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """As the API server has it."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """To the program and what it has started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def format_time(precision: str = "seconds") -> str:
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec=precision).replace("+00:00", "Z")


if __name__ == "__main__":
    asyncio.run(Kubelet(KubeletConfig.read(Path(sys.argv[1]))).run())
