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

# Sums in another order, as merged requests have them, differ by a few units of the last float32 digit.
TOLERANCE = 1e-5
_BEFORE = 40
_TIMEOUT_SECONDS = 60
# Checks during a load take a small part of the time, so that they are none.
_PAUSE_SECONDS, _PART = 0.05, 20


@dataclass(frozen=True)
class Expected:
    """Bodies, and the numbers that the library predicts for each."""

    bodies: Sequence[bytes]
    answers: Sequence[Sequence[float]]


def expected(bodies: Path, answers: Path) -> Expected:
    """Read them."""
    lines = answers.read_text().splitlines()
    return Expected(bodies.read_bytes().splitlines(), [json.loads(one) for one in lines])


class Asker:
    """A keep-alive connection that asks one request at a time."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._path = address.path
        self._connection = http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT_SECONDS)

    def ask(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises OSError and http.client.HTTPException."""
        try:
            self._connection.request("POST", self._path, body, {"content-type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def wrong(status: int, body: bytes, numbers: Sequence[float]) -> str:
    """What is wrong with an answer; empty when nothing is."""
    if status != 200:
        return f"status {status}: {body[:150]!r}"
    try:
        found = flat(json.loads(body)["predictions"])
    except (ValueError, LookupError, TypeError) as error:
        return f"not a prediction: {error!r}"
    return different(found, numbers)


def different(found: Sequence[float], numbers: Sequence[float]) -> str:
    """What differs from the numbers that the library predicts; empty when nothing does."""
    if len(found) != len(numbers):
        return f"{len(found)} numbers instead of {len(numbers)}"
    for ours, right in zip(found, numbers, strict=True):
        if not math.isclose(ours, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE * TOLERANCE):
            return f"{ours} instead of {right}"
    return ""


def check(url: str, expect: Expected) -> str:
    """What is wrong with the answers to bodies from all over the file; empty when nothing is."""
    asker = Asker(url)
    try:
        for place in range(0, len(expect.bodies), max(1, len(expect.bodies) // _BEFORE)):
            if said := wrong(*asker.ask(expect.bodies[place]), expect.answers[place]):
                return f"body {place}: {said}"
    finally:
        asker.close()
    return ""


@dataclass
class Watch:
    """What was asked during a load, and the first answer that was wrong."""

    asked: int = 0
    wrong: str = ""
    _over: threading.Event = field(default_factory=threading.Event)

    def _look(self, url: str, expect: Expected) -> None:
        asker = Asker(url)
        for turn in count():
            place = turn % len(expect.bodies)
            start = time.perf_counter()
            try:
                said = wrong(*asker.ask(expect.bodies[place]), expect.answers[place])
            except (OSError, http.client.HTTPException) as error:
                said = repr(error)
            self.asked += 1
            if said and not self.wrong:
                self.wrong = f"body {place}, under load: {said}"
            if self._over.wait(max(_PAUSE_SECONDS, _PART * (time.perf_counter() - start))):
                break
        asker.close()


@contextmanager
def watching(url: str, expect: Expected) -> Iterator[Watch]:
    """Check answers on a connection beside the load while the block lasts."""
    watch = Watch()
    thread = threading.Thread(target=watch._look, args=(url, expect), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch._over.set()
        thread.join(_TIMEOUT_SECONDS)


def flat(value: Any) -> list[float]:
    """The numbers of nested lists in order; of an object with one member, those of the member."""
    if isinstance(value, dict):
        (value,) = value.values()
    if isinstance(value, list):
        return [number for one in value for number in flat(one)]
    return [float(value)]
