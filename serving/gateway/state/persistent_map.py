"""A persistent (immutable) mapping: a changed copy shares all but one bucket with the original."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

# A change copies one bucket and the list of buckets: with 100,000 records some 400 and 256 pointers.
_BUCKETS = 256


class PersistentMap(Mapping[K, V]):
    """An immutable, unordered mapping."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, buckets: list[dict[K, V]], count: int) -> None:
        self._buckets = buckets
        self._count = count

    @classmethod
    def from_mapping(cls, records: Mapping[K, V]) -> PersistentMap[K, V]:
        if isinstance(records, PersistentMap):
            return records
        buckets: list[dict[K, V]] = [{} for _ in range(_BUCKETS)]
        for name, record in records.items():
            buckets[hash(name) % _BUCKETS][name] = record
        return cls(buckets, len(records))

    def with_item(self, name: K, record: V) -> PersistentMap[K, V]:
        bucket = self._buckets[hash(name) % _BUCKETS]
        return self._replace_bucket({**bucket, name: record}, name)

    def without_item(self, name: K) -> PersistentMap[K, V]:
        """Raises KeyError if there is no such record."""
        bucket = {**self._buckets[hash(name) % _BUCKETS]}
        del bucket[name]
        return self._replace_bucket(bucket, name)

    def _replace_bucket(self, bucket: dict[K, V], name: K) -> PersistentMap[K, V]:
        at = hash(name) % _BUCKETS
        buckets = self._buckets.copy()
        count = self._count + len(bucket) - len(buckets[at])
        buckets[at] = bucket
        return PersistentMap(buckets, count)

    def __getitem__(self, name: K) -> V:
        return self._buckets[hash(name) % _BUCKETS][name]

    def __iter__(self) -> Iterator[K]:
        return itertools.chain.from_iterable(self._buckets)

    def __len__(self) -> int:
        return self._count
