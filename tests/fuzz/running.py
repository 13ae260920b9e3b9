"""Tries inputs one after the other; tells of those that crash, hang, are slow, or make the process grow."""

from __future__ import annotations

import gc
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType

import psutil

from tests.fuzz.targets import TARGETS, Input, Target

# Seconds of the processor that an input may take, and seconds after which it is given up.
_SLOW, _HANGS = 1.0, 20
# Bytes by which the process may grow once a tenth of the inputs have been tried; how often progress is told.
_GROWTH, _LOOK_EVERY = 64 << 20, 1000
_MOST_FINDINGS = 20


class HangError(BaseException):
    """An input was given up. Nothing but this package catches it."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with an input; `python -m tests.fuzz --target T --seed S --only N` tries it again."""

    target: str
    seed: int
    number: int
    what: str

    def __str__(self) -> str:
        again = f"python -m tests.fuzz --target {self.target} --seed {self.seed} --only {self.number}"
        return f"{self.what}\n    again: {again}"


@dataclass
class Result:
    """What has come of a run; `grown` is in bytes, `slowest` in seconds of the processor."""

    tried: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    grown: int = 0
    slowest: float = 0.0


def made(target: Target, seed: int, number: int) -> Input:
    """The input of that number; always the same one."""
    return target.make(Random(f"{seed} {target.name} {number}"))


def run(
    inputs: int,
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
    targets: Sequence[Target] = TARGETS,
) -> Result:
    """Try so many inputs, shared out among the targets; stops after many findings."""
    result = Result()
    process = psutil.Process()
    before = 0
    with _alarm():
        for number, target in enumerate(_shared(targets)):
            if number >= inputs or len(result.findings) >= _MOST_FINDINGS:
                break
            _try(target, seed, number, result)
            if number == inputs // 10:
                gc.collect()
                before = process.memory_info().rss
            if number % _LOOK_EVERY == 0:
                progress(number)
    gc.collect()
    result.grown = process.memory_info().rss - before
    if result.grown > _GROWTH:
        result.findings.append(Finding("all", seed, inputs, f"The process grew by {result.grown >> 20} MiB."))
    progress(inputs)
    return result


def _shared(targets: Sequence[Target]) -> Iterator[Target]:
    """The targets in turn, each as often as is its share."""
    while True:
        for turn in range(max(target.share for target in targets)):
            yield from (target for target in targets if turn < target.share)


def _try(target: Target, seed: int, number: int, result: Result) -> None:
    given = made(target, seed, number)
    start = time.process_time()
    try:
        signal.alarm(_HANGS)
        target.attempt(given)
        signal.alarm(0)
    except HangError:
        result.findings.append(Finding(target.name, seed, number, f"hangs: {_shown(given)}"))
    except Exception as error:
        signal.alarm(0)
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        what = f"{type(error).__name__}: {str(error)[:300]}\n{where}    input: {_shown(given)}"
        result.findings.append(Finding(target.name, seed, number, what))
    took = time.process_time() - start
    result.tried[target.name] += 1
    result.slowest = max(result.slowest, took)
    if took > _SLOW:
        result.findings.append(Finding(target.name, seed, number, f"slow, {took:.1f} s: {_shown(given)}"))


def _shown(given: Input) -> str:
    text = repr(given)
    return text if len(text) <= 500 else f"{text[:400]} … {text[-80:]}"


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise HangError

    old = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
