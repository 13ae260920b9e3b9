"""A server that gives the answers of the web UI of a master of Spark 3.5.5, as they were recorded, for
applications that a test makes up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

# What Beam's job server adds to the name of a pipeline.
INVOCATION = "_3a7ae4fb-23c3-4b51-9f3e-5d2f6f8d4f1c"


def application(identifier: str, pipeline: str, state: str = "RUNNING", memory: int = 1024) -> dict[str, Any]:
    """An entry of `activeapps` or `completedapps`."""
    return {
        "id": identifier,
        "starttime": 1795824001234,
        "name": f"{pipeline}{INVOCATION}",
        "cores": 0 if state == "WAITING" else 2,
        "user": "root",
        "memoryperexecutor": memory,
        "memoryperslave": memory,
        "resourcesperexecutor": [],
        "resourcesperslave": [],
        "submitdate": "Sat Nov 28 00:20:01 UTC 2026",
        "state": state,
        "duration": 5230,
    }


def worker(free_cores: int, free_memory: int = 1500, state: str = "ALIVE") -> dict[str, Any]:
    return {
        "id": "worker-20261128001955-127.0.0.1-40001",
        "host": "127.0.0.1",
        "port": 40001,
        "webuiaddress": "http://127.0.0.1:40002",
        "cores": 1,
        "coresused": 1 - free_cores,
        "coresfree": free_cores,
        "memory": 1500,
        "memoryused": 1500 - free_memory,
        "memoryfree": free_memory,
        "resources": {},
        "resourcesused": {},
        "resourcesfree": {},
        "state": state,
        "lastheartbeat": 1795824010456,
    }


@dataclass
class SparkPeer:
    """Its applications and workers, and what it was asked to end.

    `steps`: how often it is asked before an application that is to end has ended. `arriving`: and before
    another one is there. `refuses`: it ends none.
    """

    url: str = ""
    active: list[dict[str, Any]] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    workers: list[dict[str, Any]] = field(default_factory=lambda: [worker(0), worker(0)])
    status: str = "ALIVE"
    killed: list[str] = field(default_factory=list)
    asked: int = 0
    steps: int = 0
    arriving: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    refuses: bool = False

    def answer(self, method: str, path: str, body: str) -> tuple[int, Any]:
        match method, path:
            case "GET", "/json/":
                self._go_on()
                return 200, self._describe()
            case "POST", "/app/kill/" if not self.refuses:
                given = parse_qs(body)
                assert given["terminate"] == ["true"]
                self.killed += given["id"]
                return 302, f"http://{self.url}/"
        return 405, {}

    def _describe(self) -> dict[str, Any]:
        alive = [one for one in self.workers if one["state"] == "ALIVE"]
        return {
            "url": "spark://127.0.0.1:7077",
            "workers": self.workers,
            "aliveworkers": len(alive),
            "cores": len(alive),
            "coresused": sum(one["coresused"] for one in alive),
            "memory": sum(one["memory"] for one in alive),
            "memoryused": sum(one["memoryused"] for one in alive),
            "resources": [],
            "resourcesused": [],
            "activeapps": self.active,
            "completedapps": self.ended,
            "activedrivers": [],
            "completeddrivers": [],
            "status": self.status,
        }

    def _go_on(self) -> None:
        self.asked += 1
        for after, one in list(self.arriving):
            if self.asked > after:
                self.active.append(one)
                self.arriving.remove((after, one))
        if self.killed:
            self.steps -= 1
        if self.steps < 0:
            ended = [one for one in self.active if one["id"] in self.killed]
            self.active = [one for one in self.active if one not in ended]
            self.ended += [{**one, "state": "KILLED"} for one in ended]
