"""What other servers have committed, and how it is taken into a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from serving.gateway.state.catalog_state import TABLES, CatalogState, Commit, StateDraft
from serving.gateway.state.records import Record

RECORD_TYPES: Mapping[str, type[Record]] = {table: kind for kind, table in TABLES.items()}


class RecordChange(NamedTuple):
    """A record that was written or, if `deleted`, removed; then `record` is what it was."""

    record: Record
    deleted: bool


@dataclass(frozen=True, slots=True)
class MissedChanges:
    """All up to `revision` that a state lacks: the changes in their order, or the whole `state`.

    `token` is that of the commit that made the revision. `is_restored`: the state that lacks them is none
    that this database ever had: an older copy of it was put back.
    """

    revision: int
    token: str = ""
    changes: Sequence[RecordChange] = ()
    state: CatalogState | None = None
    is_restored: bool = False


def decode_record(table: str, document: bytes) -> Record:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(document, type=RECORD_TYPES[table])


def take_in(state: CatalogState, missed: MissedChanges) -> Commit:
    """The commit from a state to what others have made of it."""
    if missed.state is not None:
        return Commit(state, missed.state, dict(_compare_states(state, missed.state)))
    draft = StateDraft(state)
    for change in missed.changes:
        if change.deleted:
            draft.delete(change.record)
        else:
            draft.put(change.record)
    return Commit(state, draft.to_state(), draft.changes)


def _compare_states(
    before: CatalogState, after: CatalogState
) -> Iterator[tuple[tuple[str, str], Record | None]]:
    """The records that differ, of those that followers look at: jobs that have ended are left out."""
    tables: tuple[tuple[str, Mapping[Any, Record], Mapping[Any, Record]], ...] = (
        ("models", before.models, after.models),
        ("versions", before.versions, after.versions),
        ("operations", before.operations, after.operations),
        ("policies", before.policies, after.policies),
    )
    for table, old, new in tables:
        yield from (((table, str(name)), None) for name in old if name not in new)
        yield from (((table, str(name)), record) for name, record in new.items() if old.get(name) != record)
    for _, name in after.job_index.unfinished:
        if before.jobs.get(name) != after.jobs[name]:
            yield ("jobs", name), after.jobs[name]
