"""Persistent (immutable) sorted sequences, whose changed copies share chunks, and an index of them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

P = TypeVar("P")
N = TypeVar("N", bound=Any)  # has an order

# The most values of a chunk. A change copies one chunk and the tuple of chunks.
_CHUNK = 512


class SortedSequence(Sequence[N]):
    """Distinct sorted values; immutable."""

    __slots__ = ("_chunks", "_ends")

    def __init__(self, chunks: Iterable[tuple[N, ...]] = ()) -> None:
        self._chunks = tuple(chunks)
        self._ends = tuple(itertools.accumulate(map(len, self._chunks)))

    @classmethod
    def from_values(cls, values: Iterable[N]) -> SortedSequence[N]:
        ordered = sorted(values)
        return cls(tuple(ordered[at : at + _CHUNK // 2]) for at in range(0, len(ordered), _CHUNK // 2))

    def with_value(self, value: N) -> SortedSequence[N]:
        at = min(self._find_chunk(value), len(self._chunks) - 1)
        if at < 0:
            return SortedSequence([(value,)])
        chunk = [*self._chunks[at]]
        bisect.insort(chunk, value)
        halves = (chunk,) if len(chunk) <= _CHUNK else (chunk[: _CHUNK // 2], chunk[_CHUNK // 2 :])
        return self._replace_chunk(at, map(tuple, halves))

    def without_value(self, value: N) -> SortedSequence[N]:
        at = self._find_chunk(value)
        rest = tuple(other for other in self._chunks[at] if other != value)
        return self._replace_chunk(at, (rest,) if rest else ())

    def _replace_chunk(self, at: int, chunks: Iterable[tuple[N, ...]]) -> SortedSequence[N]:
        return SortedSequence((*self._chunks[:at], *chunks, *self._chunks[at + 1 :]))

    def _find_chunk(self, value: N) -> int:
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
        return isinstance(other, SortedSequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class SortedIndex(Generic[P, N]):
    """Sorted names by their parent; immutable."""

    _children: Mapping[P, SortedSequence[N]]

    @classmethod
    def from_names(cls, names: Iterable[N], parent_of: Callable[[N], P]) -> SortedIndex[P, N]:
        children: dict[P, list[N]] = {}
        for name in names:
            children.setdefault(parent_of(name), []).append(name)
        return cls({parent: SortedSequence.from_values(found) for parent, found in children.items()})

    @property
    def parents(self) -> Collection[P]:
        """Those that have children."""
        return self._children.keys()

    def list_children(self, parent: P) -> Sequence[N]:
        return self._children.get(parent, SortedSequence())

    def with_name(self, parent: P, name: N) -> SortedIndex[P, N]:
        return SortedIndex(
            {**self._children, parent: self._children.get(parent, SortedSequence()).with_value(name)}
        )

    def without_name(self, parent: P, name: N) -> SortedIndex[P, N]:
        children = {**self._children, parent: self._children[parent].without_value(name)}
        if not children[parent]:
            del children[parent]
        return SortedIndex(children)
