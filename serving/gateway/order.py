"""Names in the order of lists, kept from one state to the next: a change costs what it changes."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

P = TypeVar("P")
N = TypeVar("N", bound=Any)  # has an order


@dataclass(frozen=True, slots=True)
class Order(Generic[P, N]):
    """Sorted names by what they are below; immutable."""

    _below: Mapping[P, tuple[N, ...]]

    @classmethod
    def of(cls, names: Iterable[N], parent_of: Callable[[N], P]) -> Order[P, N]:
        """That of all these names."""
        below: dict[P, list[N]] = {}
        for name in sorted(names):
            below.setdefault(parent_of(name), []).append(name)
        return cls({parent: tuple(found) for parent, found in below.items()})

    def below(self, parent: P) -> tuple[N, ...]:
        """The names below one."""
        return self._below.get(parent, ())

    def adding(self, parent: P, name: N) -> Order[P, N]:
        """With one more name."""
        known = self.below(parent)
        place = bisect.bisect_left(known, name)
        return Order({**self._below, parent: (*known[:place], name, *known[place:])})

    def dropping(self, parent: P, name: N) -> Order[P, N]:
        """With one less."""
        known = self.below(parent)
        place = bisect.bisect_left(known, name)
        below = {**self._below, parent: (*known[:place], *known[place + 1 :])}
        if not below[parent]:
            del below[parent]
        return Order(below)
