"""Names in the order of lists, kept from one state to the next: a change costs what it changes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

P = TypeVar("P")
N = TypeVar("N", bound=Any)  # has an order

# A change copies one chunk, and the tuple of them.
_CHUNK = 512


class Sorted(Sequence[N]):
    """Distinct values in their order; immutable."""

    __slots__ = ("_chunks", "_ends")

    def __init__(self, chunks: Iterable[tuple[N, ...]] = ()) -> None:
        self._chunks = tuple(chunks)
        self._ends = tuple(itertools.accumulate(map(len, self._chunks)))

    @classmethod
    def of(cls, values: Iterable[N]) -> Sorted[N]:
        """These values, in any order."""
        ordered = sorted(values)
        return cls(tuple(ordered[at : at + _CHUNK // 2]) for at in range(0, len(ordered), _CHUNK // 2))

    def adding(self, value: N) -> Sorted[N]:
        """With one more value."""
        at = min(self._chunk_of(value), len(self._chunks) - 1)
        if at < 0:
            return Sorted([(value,)])
        chunk = [*self._chunks[at]]
        bisect.insort(chunk, value)
        halves = (chunk,) if len(chunk) <= _CHUNK else (chunk[: _CHUNK // 2], chunk[_CHUNK // 2 :])
        return self._with(at, map(tuple, halves))

    def dropping(self, value: N) -> Sorted[N]:
        """With one less."""
        at = self._chunk_of(value)
        left = tuple(one for one in self._chunks[at] if one != value)
        return self._with(at, (left,) if left else ())

    def _with(self, at: int, chunks: Iterable[tuple[N, ...]]) -> Sorted[N]:
        return Sorted((*self._chunks[:at], *chunks, *self._chunks[at + 1 :]))

    def _chunk_of(self, value: N) -> int:
        """The first chunk that ends with this value or a later one."""
        return bisect.bisect_left(self._chunks, value, key=lambda chunk: chunk[-1])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> N: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[N]: ...

    def __getitem__(self, index: int | slice) -> N | Sequence[N]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        at = bisect.bisect_right(self._ends, place)
        return self._chunks[at][place - self._ends[at]]

    def __iter__(self) -> Any:
        return itertools.chain.from_iterable(self._chunks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sorted) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Order(Generic[P, N]):
    """Sorted names by what they are below; immutable."""

    _below: Mapping[P, Sorted[N]]

    @classmethod
    def of(cls, names: Iterable[N], parent_of: Callable[[N], P]) -> Order[P, N]:
        """That of all these names."""
        below: dict[P, list[N]] = {}
        for name in names:
            below.setdefault(parent_of(name), []).append(name)
        return cls({parent: Sorted.of(found) for parent, found in below.items()})

    def below(self, parent: P) -> Sequence[N]:
        """The names below one."""
        return self._below.get(parent, Sorted())

    def adding(self, parent: P, name: N) -> Order[P, N]:
        """With one more name."""
        return Order({**self._below, parent: self._below.get(parent, Sorted()).adding(name)})

    def dropping(self, parent: P, name: N) -> Order[P, N]:
        """With one less."""
        below = {**self._below, parent: self._below[parent].dropping(name)}
        if not below[parent]:
            del below[parent]
        return Order(below)
