"""A server that gives the answers of Flink 1.19.3, as they were recorded, for jobs that a test makes up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TASKS = ("running", "canceling", "canceled", "created", "scheduled", "deploying", "reconciling", "finished")


def job(identifier: str, name: str, state: str = "RUNNING", **tasks: int) -> dict[str, Any]:
    """An entry of /jobs/overview."""
    counts = {
        "total": sum(tasks.values()),
        **dict.fromkeys(TASKS, 0),
        "initializing": 0,
        "failed": 0,
        **tasks,
    }
    return {
        "jid": identifier,
        "name": name,
        "start-time": 1795792749174,
        "end-time": -1,
        "duration": 16260,
        "state": state,
        "last-modification": 1795792749440,
        "tasks": counts,
    }


@dataclass
class FlinkPeer:
    """Its jobs, and what was asked of it.

    `steps`: how often jobs are listed before a cancel is done; `arriving`: and before another job is there.
    """

    url: str = ""
    jobs: list[dict[str, Any]] = field(default_factory=list)
    slots: tuple[int, int] = (2, 2)  # in all, free
    held: dict[str, int] = field(default_factory=dict)  # slots by job
    parallelism: int = 1
    exception: str = ""
    asked: list[str] = field(default_factory=list)
    steps: int = 1
    arriving: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def answer(self, method: str, path: str, _: str) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        parts = path.strip("/").split("/")
        match method, parts:
            case "GET", ["overview"]:
                return 200, self._overview()
            case "GET", ["jobs", "overview"]:
                self._go_on()
                return 200, {"jobs": self.jobs}
            case "GET", ["jobs", _]:
                return 200, {"vertices": [{"name": "step", "parallelism": self.parallelism}]}
            case "GET", ["jobs", _, "exceptions"]:
                return 200, {"root-exception": self.exception or None, "all-exceptions": []}
            case "GET", ["taskmanagers"]:
                return 200, {"taskmanagers": [{"id": "tm-1"}]}
            case "GET", ["taskmanagers", _]:
                slots = [{"jobId": name} for name, count in self.held.items() for _ in range(count)]
                return 200, {"id": "tm-1", "allocatedSlots": slots}
            case "PATCH", ["jobs", identifier]:
                return self._cancel(identifier)
        return 404, {"errors": ["Not found: " + path]}

    def _overview(self) -> dict[str, Any]:
        total, free = self.slots
        return {
            "taskmanagers": 1 if total else 0,
            "slots-total": total,
            "slots-available": free,
            "jobs-running": 0,
            "flink-version": "1.19.3",
        }

    def _go_on(self) -> None:
        looks = sum(line == "GET /jobs/overview" for line in self.asked)
        for after, one in list(self.arriving):
            if looks > after:
                self.jobs.append(one)
                self.arriving.remove((after, one))
        for one in self.jobs:
            if one["state"] == "CANCELLING":
                one["left"] -= 1
                one["state"] = "CANCELED" if one["left"] < 1 else "CANCELLING"

    def _cancel(self, identifier: str) -> tuple[int, Any]:
        for one in self.jobs:
            if one["jid"] == identifier:
                if one["state"] not in ("RUNNING", "CREATED", "RESTARTING"):
                    return 409, {"errors": ["Job cancellation failed because the job has already finished"]}
                one["state"], one["left"] = "CANCELLING", self.steps
                return 202, {}
        return 404, {"errors": [f"Job could not be found: {identifier}"]}
