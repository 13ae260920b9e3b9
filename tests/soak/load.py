"""What good clients ask of healthy versions while faults happen, at an even pace; each answer is known."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from tests.end_to_end import models
from tests.load import Answer, Client
from tests.server import Server
from tests.soak.faults import POISONED
from tests.soak.judging import NO_ANSWER, WRONG_ANSWER, Asked
from tests.written import as_written

PROJECT = "projects/soak"
_ROWS = models.data()[0]
# Of every twenty requests one is in another protocol.
OTHER_EVERY = 20
# The sleeping version is asked for a moment, and then left alone for longer than the idle time of the server.
BURST, SLEEP = 1.0, 7.0

POISONOUS = dedent(
    '''
    import os

    class Routine:
        """Ends its node, never comes back, takes all the memory there is, or answers."""

        def predict(self, instances, **kwargs):
            for instance in instances:
                if instance == "exit 3":
                    os._exit(3)
                elif instance == "loop":
                    while True:
                        pass
                elif instance == "eat":
                    self.eaten = [bytes(1 << 20).replace(bytes(1), b"x") for _ in range(1 << 20)]
            return instances

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    '''
)


@dataclass(frozen=True)
class Question:
    """One request, with the predictions that must come back, as they are in the answer's JSON."""

    path: str
    body: bytes
    wanted: Any
    read: Callable[[Any], Any] = field(default=lambda answer: answer["predictions"])


@dataclass(frozen=True)
class Version:
    """A healthy version and the share of the load that it gets; with `once` none is repeated."""

    name: str
    share: float
    questions: Sequence[Question]
    others: Sequence[Question] = ()
    once: bool = False
    sleeps: bool = False

    def question(self, number: int) -> Question:
        """What the request of that number asks."""
        if self.others and number % OTHER_EVERY == 0:
            return self.others[number // OTHER_EVERY % len(self.others)]
        return self.questions[number % len(self.questions)]


def deploy(server: Server, root: Path) -> list[Version]:
    """One version of each kind, a slow one, one that mostly sleeps, and one that ruins its nodes."""
    forest = models.write_sklearn(root / "forest")
    booster = models.write_xgboost(root / "xgboost")
    models.write_tensorflow(root / "tensorflow")
    routine = models.routine(root)
    always = {"autoScaling": {"minNodes": 1, "maxNodes": 2}}
    repeatable = {"labels": {"pilotlight-repeatable": "on"}}
    poison = models.wheel(root, "poison", "0.1", {"poison.py": POISONOUS})
    specs: dict[str, dict[str, Any]] = {
        "forest": {"deploymentUri": str(root / "forest")},
        "xgboost": {"deploymentUri": str(root / "xgboost"), **always},
        "tensorflow": {"deploymentUri": str(root / "tensorflow")},
        "routine": {**routine, **always},
        "slow": {**routine, **repeatable},
        "sleeper": {"deploymentUri": str(root / "forest")},
        "poisoned": {"predictionClass": "poison.Routine", "packageUris": [str(poison)]},
    }
    for name, spec in specs.items():
        server.create_model(f"{PROJECT}/models/{name}")
        server.create_version(_version(name), **spec)
    assert _version("poisoned") == POISONED

    import xgboost as xgb

    rows = [_ROWS[number : number + 2] for number in range(0, 40, 2)]
    classes = [(part.tolist(), as_written(forest.predict(part))) for part in rows]
    scores = [(part.tolist(), as_written(booster.predict(xgb.DMatrix(part)))) for part in rows]
    pairs = [[float(number), 1.0] for number in range(20)]
    return [
        Version(
            "forest", 0.35, [_ask("forest", part, wanted) for part, wanted in classes],
            [_infer("forest", part, wanted) for part, wanted in classes],
        ),
        Version("xgboost", 0.3, [_ask("xgboost", part, wanted) for part, wanted in scores]),
        Version(
            "tensorflow", 0.14,
            [_ask("tensorflow", [pair], [{"doubled": [2 * n for n in pair]}]) for pair in pairs],
        ),
        Version("routine", 0.19, [_ask("routine", [n], [2.0 * n]) for n in range(20)], once=True),
        Version("slow", 0.01, [_ask("slow", ["sleep 0.3"], ["done"])]),
        Version("sleeper", 0.01, [_ask("sleeper", part, wanted) for part, wanted in classes], sleeps=True),
    ]  # fmt: skip


def _version(name: str) -> str:
    return f"{PROJECT}/models/{name}/versions/v1"


def _ask(name: str, instances: Any, wanted: Any) -> Question:
    return Question(f"/v1/{_version(name)}:predict", json.dumps({"instances": instances}).encode(), wanted)


def _infer(name: str, rows: Any, wanted: Any) -> Question:
    """The same in the Open Inference Protocol."""
    data = np.asarray(rows)
    tensor = {"name": "x", "datatype": "FP64", "shape": list(data.shape), "data": data.ravel().tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    return Question(f"/v2/models/{name}/infer", body, wanted, lambda answer: answer["outputs"][0]["data"])


@dataclass
class Load:
    """Asks all versions until it is told that it is over."""

    client: Client
    versions: Sequence[Version]
    rate: float
    begun: float
    asked: list[Asked] = field(default_factory=list)
    over: bool = False
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begun

    async def run(self) -> None:
        """Ask; returns when everything that was asked is answered."""
        async with asyncio.TaskGroup() as group:
            for version in self.versions:
                group.create_task(
                    self._ask_in_bursts(version) if version.sleeps else self._pace(version, None)
                )
        await asyncio.gather(*self._under_way)

    async def _ask_in_bursts(self, version: Version) -> None:
        per_second = self.rate * version.share * (BURST + SLEEP) / BURST
        while not self.over:
            await self._pace(version, BURST, per_second)
            await asyncio.sleep(SLEEP)

    async def _pace(self, version: Version, seconds: float | None, per_second: float | None = None) -> None:
        pause = 1 / (per_second or self.rate * version.share)
        start, number = time.perf_counter(), 0
        while not self.over and (seconds is None or number * pause < seconds):
            due = start + number * pause
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.create_task(self._ask(version, version.question(number)))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            number += 1

    async def _ask(self, version: Version, question: Question) -> None:
        start = self.now()
        answer = await self.client.send(question.path, question.body)
        status, reason = verdict(question, answer)
        self.asked.append(Asked(version.name, start, self.now(), status, reason, version.once))


def verdict(question: Question, answer: Answer) -> tuple[int, str]:
    """The status of an answer, and what is wrong with it if anything is."""
    if answer.status == NO_ANSWER:
        return NO_ANSWER, f"no answer: {answer.body.decode().partition('(')[0]}"
    if answer.status != 200:
        message = json.loads(answer.body).get("error", "")
        text = message.get("message", "") if isinstance(message, dict) else str(message)
        return answer.status, f"{answer.status}: {text[:120]}"
    if question.read(json.loads(answer.body)) != question.wanted:
        return WRONG_ANSWER, f"wrong answer: {answer.body[:120].decode()}"
    return 200, ""
