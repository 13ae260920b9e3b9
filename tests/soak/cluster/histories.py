"""Whether what clients saw of a register can have happened, each operation at one moment of its time.

That is linearizability, by just-in-time linearization: while time goes on, every order is followed that the
answers so far allow. A history in which an answer allows none is a violation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# What the register may hold, and which operations in flight have been counted, by their number.
_Configuration = tuple[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class RegisterOperation:
    """A read, a write, or a write on condition that the register holds a value.

    `saw` is what a read returned, or what a write asked for; None where a write asked for nothing. `wrote` is
    None for a read; no two operations write the same value. `end` is infinite where no answer came: it may
    have been done at any moment since, or never. Operations that were refused are left out.
    """

    start: float
    end: float
    saw: str | None = None
    wrote: str | None = None

    @property
    def is_answered(self) -> bool:
        return self.end < math.inf


def find_violation(operations: Iterable[RegisterOperation], initial: str) -> RegisterOperation | None:
    """The first operation whose answer no order explains; None if there is an order for all."""
    known = _bound_unanswered(list(operations))
    # At equal times operations overlap.
    moments = sorted(
        [(one.start, 0, number) for number, one in enumerate(known)]
        + [(one.end, 1, number) for number, one in enumerate(known)]
    )
    running: set[int] = set()
    configurations: set[_Configuration] = {(initial, frozenset())}
    for _, is_end, number in moments:
        if not is_end:
            running.add(number)
            continue
        configurations = {
            (value, counted - {number})
            for value, counted in _count_operation(number, configurations, running, known)
        }
        running.discard(number)
        if not configurations:
            return known[number]
    return None


def _bound_unanswered(operations: Sequence[RegisterOperation]) -> list[RegisterOperation]:
    """Without unanswered operations whose value nobody saw: leaving those out is an order, too.

    Of the others, the value was there before the answer came to the first who saw it.
    """
    unanswered = {one.wrote: one for one in operations if not one.is_answered and one.wrote is not None}
    kept = [one for one in operations if one.is_answered]
    seen: dict[str, float] = {}
    for one in kept:
        if one.saw in unanswered:
            seen[one.saw] = min(one.end, seen.get(one.saw, math.inf))
    waiting = list(seen)
    while waiting:
        value = waiting.pop()
        needed = unanswered[value].saw
        # What an unanswered write on condition saw was there before its own value.
        if needed in unanswered and seen[value] < seen.get(needed, math.inf):
            seen[needed] = seen[value]
            waiting.append(needed)
    return kept + [replace(unanswered[value], end=end) for value, end in seen.items()]


def _count_operation(
    number: int,
    configurations: Iterable[_Configuration],
    running: Iterable[int],
    operations: Sequence[RegisterOperation],
) -> set[_Configuration]:
    """All configurations in which the operation is counted, after any others that are in flight."""
    reached: set[_Configuration] = set()
    followed: set[_Configuration] = set()
    waiting = list(configurations)
    while waiting:
        configuration = waiting.pop()
        if configuration in followed:
            continue
        followed.add(configuration)
        value, counted = configuration
        if number in counted:
            reached.add(configuration)
            continue
        for other in running:
            one = operations[other]
            if other not in counted and one.saw in (None, value):
                after = value if one.wrote is None else one.wrote
                waiting.append((after, counted | {other}))
    return reached
