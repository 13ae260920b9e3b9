"""The short form of `python -m tests.fuzz`: always the same inputs."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from serving.errors import InvalidInputs
from tests.fuzz.running import made, run
from tests.fuzz.targets import FORMS, TARGETS, Target, decode

# 1e39 is infinite as a float32.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")


def test_no_input_does_harm() -> None:
    """Each is taken, and then decoded as the plain parser has it, or refused with a 4xx."""
    result = run(10_000, seed=5)

    assert not result.findings, "\n".join(map(str, result.findings))
    assert result.tried.keys() == {target.name for target in TARGETS}


def test_inputs_come_again() -> None:
    """The same seed and number make the same input, another seed another one."""
    codec = TARGETS[0]

    assert made(codec, 1, 7) == made(codec, 1, 7) != made(codec, 2, 7)


def test_inputs_are_of_both_kinds() -> None:
    """At least a quarter of the bodies is taken by the codec, and a quarter is refused."""
    seen: Counter[str] = Counter()
    for number in range(1000):
        name, body = made(TARGETS[0], 5, number)
        try:
            decode(body, FORMS[name])
        except InvalidInputs:
            seen["refused"] += 1
        else:
            seen["taken"] += 1

    assert min(seen["refused"], seen["taken"]) >= 250, seen


def test_what_is_wrong_is_found() -> None:
    """A crash, and an input that takes too long, each with how to try it again."""

    def attempt(number: float) -> None:
        if number < 0.5:
            raise KeyError(number)

    target = Target("bad", 1, Random.random, attempt)
    result = run(10, 3, targets=[target])

    assert result.findings
    found = result.findings[0]
    assert "KeyError" in found.what
    assert f"--target bad --seed 3 --only {found.number}" in str(found)
    with pytest.raises(KeyError):
        attempt(made(target, 3, found.number))
