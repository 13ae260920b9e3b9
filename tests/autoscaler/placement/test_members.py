"""Weights: a server with too much to do hands versions on, until loads are within the bound."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from autoscaler.placement.members import (
    LOAD_BOUND,
    WEIGHT_STEPS,
    Member,
    decide_weight,
    mean_load,
)
from autoscaler.placement.ownership import choose_owners


def member(load: float, weight: int = WEIGHT_STEPS, capacity: int = 1) -> Member:
    return Member(id=str(load), capacity=capacity, weight=weight, load=load)


@pytest.mark.parametrize(
    ("own", "others", "weight"),
    [
        (member(0.9), [member(0.5)], 15),  # above 1.25 times the mean of 0.7
        (member(0.9), [member(0.8)], 16),
        (member(0.4), [member(0.1)], 16),  # nobody gains by it
        (member(0.9, weight=1), [member(0.1)], 1),
        (member(0.5, weight=10), [member(0.9)], 11),  # less than the others
        (member(0.8, weight=10), [member(0.7)], 10),  # within the bound: it stays
        (member(0.2, weight=10), [member(0.1)], 11),
    ],
)
def test_weights_follow_the_load(own: Member, others: list[Member], weight: int) -> None:
    assert decide_weight(own, [own, *others]) == weight


def test_the_mean_is_that_of_all_capacity() -> None:
    assert mean_load([member(1.0), member(0.0, capacity=3)]) == 0.25
    assert mean_load([]) == 0.0


def test_loads_come_within_the_bound() -> None:
    """Of versions that need very different memory; no version is a tenth of a server."""
    source = random.Random(5)
    needs = {f"version-{number}": min(40.0, source.paretovariate(1.1)) for number in range(3000)}
    members = [Member(id=f"server-{number}", capacity=1000) for number in range(10)]
    for one in members[:2]:
        # Together they have the most of what many are asked for.
        for key in needs:
            if choose_owners(key, members)[0] is one:
                needs[key] *= 2

    def with_loads(found: list[Member]) -> list[Member]:
        taken: Counter[str] = Counter()
        for key, need in needs.items():
            taken[choose_owners(key, found)[0].id] += need  # type: ignore[assignment]
        return [replace(one, load=taken[one.id] / one.capacity) for one in found]

    seen = with_loads(members)
    assert max(one.load for one in seen) > LOAD_BOUND * mean_load(seen)
    for _ in range(20):
        seen = with_loads([replace(one, weight=decide_weight(one, seen)) for one in seen])

    assert max(one.load for one in seen) <= LOAD_BOUND * mean_load(seen)
