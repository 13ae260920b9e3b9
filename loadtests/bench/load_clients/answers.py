"""Whether a server answers what the library predicts, before a load and while it lasts."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# Sums in another order, as in merged requests, differ by a few units of the last float32 digit.
TOLERANCE = 1e-5
_CHECKED_BEFORE = 40
_TIMEOUT_SECONDS = 60
# Checks during a load take a small part of the time, so that they add no load.
_PAUSE_SECONDS, _LOAD_SHARE = 0.05, 20


@dataclass(frozen=True)
class ExpectedAnswers:
    """Request bodies, and the numbers that the library predicts for each."""

    bodies: Sequence[bytes]
    answers: Sequence[Sequence[float]]


def read_expected(bodies: Path, answers: Path) -> ExpectedAnswers:
    lines = answers.read_text().splitlines()
    return ExpectedAnswers(bodies.read_bytes().splitlines(), [json.loads(one) for one in lines])


class HttpAsker:
    """A keep-alive connection for one request at a time."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._path = address.path
        self._connection = http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT_SECONDS)

    def post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OSError and http.client.HTTPException."""
        try:
            self._connection.request("POST", self._path, body, {"content-type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def close(self) -> None:
        self._connection.close()


def find_error(status: int, body: bytes, numbers: Sequence[float]) -> str:
    """What is wrong with an answer; "" when it is right."""
    if status != 200:
        return f"status {status}: {body[:150]!r}"
    try:
        found = flatten_numbers(json.loads(body)["predictions"])
    except (ValueError, LookupError, TypeError) as error:
        return f"not a prediction: {error!r}"
    return find_difference(found, numbers)


def find_difference(found: Sequence[float], numbers: Sequence[float]) -> str:
    """The first difference from the numbers that the library predicts; "" without one."""
    if len(found) != len(numbers):
        return f"{len(found)} numbers instead of {len(numbers)}"
    for ours, right in zip(found, numbers, strict=True):
        if not math.isclose(ours, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE * TOLERANCE):
            return f"{ours} instead of {right}"
    return ""


def check_answers(url: str, expect: ExpectedAnswers) -> str:
    """What is wrong with the answers to bodies from all over the file; "" when all are right."""
    asker = HttpAsker(url)
    try:
        for place in range(0, len(expect.bodies), max(1, len(expect.bodies) // _CHECKED_BEFORE)):
            if said := find_error(*asker.post(expect.bodies[place]), expect.answers[place]):
                return f"body {place}: {said}"
    finally:
        asker.close()
    return ""


@dataclass
class AnswerChecker:
    """The number of answers checked during a load, and what was wrong with the first wrong one."""

    count: int = 0
    wrong: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)

    def _check_until_stopped(self, url: str, expect: ExpectedAnswers) -> None:
        asker = HttpAsker(url)
        for turn in count():
            place = turn % len(expect.bodies)
            start = time.perf_counter()
            try:
                said = find_error(*asker.post(expect.bodies[place]), expect.answers[place])
            except (OSError, http.client.HTTPException) as error:
                said = repr(error)
            self.count += 1
            if said and not self.wrong:
                self.wrong = f"body {place}, under load: {said}"
            if self._stop.wait(max(_PAUSE_SECONDS, _LOAD_SHARE * (time.perf_counter() - start))):
                break
        asker.close()


@contextmanager
def check_during(url: str, expect: ExpectedAnswers) -> Iterator[AnswerChecker]:
    """Check answers on another connection during the block."""
    watch = AnswerChecker()
    thread = threading.Thread(target=watch._check_until_stopped, args=(url, expect), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch._stop.set()
        thread.join(_TIMEOUT_SECONDS)


def flatten_numbers(value: Any) -> list[float]:
    """The numbers of nested lists in order; of an object with one member, those of the member."""
    if isinstance(value, dict):
        (value,) = value.values()
    if isinstance(value, list):
        return [number for one in value for number in flatten_numbers(one)]
    return [float(value)]
