"""The snapshot of a study, in memory and on disk."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import Record
from serving.gateway.state.store import SqliteStore
from serving.gateway.state.study_records import (
    MAX_KEPT_MEASUREMENTS,
    StudyOperationRecord,
    StudyRecord,
    StudySnapshot,
    TrialRecord,
    pack_trial,
    thin_measurements,
    unpack_trial,
)
from serving.names import StudyName
from tuning.space import Parameter, ParameterKind, SearchSpace
from tuning.study import Measurement, Metric, Study, Trial, TrialState

NAME = StudyName("p", "here", "s")
STUDY = Study(
    uid="0123",
    space=SearchSpace((Parameter(name="x", kind=ParameterKind.DOUBLE, minimum=0.0, maximum=1.0),)),
    metrics=(Metric("loss"),),
)
RECORD = StudyRecord(name=NAME, study=STUDY, create_time="2030-01-01T00:00:00Z", last_trial=2)
OPEN = Trial(number=1, parameters={"x": 0.5}, client_id="c", started_at=5.0)
OPERATION = StudyOperationRecord(
    study=NAME, number=3, created_at=1.5, ended_at=2.0, client_id="c", count=2, suggested=(1, 2)
)


def completed(number: int, measurements: int = 0) -> Trial:
    curve = tuple(Measurement(step, step * 1.5, {"loss": 1 / (step + 1)}) for step in range(measurements))
    return Trial(
        number=number,
        parameters={"x": 0.25, "depth": 3, "kind": "round"},
        state=TrialState.COMPLETED,
        measurements=curve,
        final=Measurement(7, 10.5, {"loss": 0.125, "accuracy": 0.0}),
        client_id="c",
        stopped_early=True,
        attempts=2,
        created_at=1.0,
        started_at=2.0,
        ended_at=3.0,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "state.db")
    yield store
    store.close()


def write(
    store: SqliteStore, state: CatalogState, *records: Record, gone: Record | None = None
) -> CatalogState:
    """What is committed, and the state after it."""
    draft = StateDraft(state)
    for record in records:
        draft.put(record)
    if gone is not None:
        draft.delete(gone)
    store.commit(draft.changes)
    return draft.to_state()


def test_a_completed_trial_is_packed_without_loss() -> None:
    """Also measurements of which each has other metrics, and trials without any."""
    trial = msgspec.structs.replace(
        completed(3),
        measurements=(
            Measurement(1, 0.5, {"loss": 1.0}),
            Measurement(2, 1.5, {"loss": 0.5, "accuracy": 0.0}),
        ),
    )
    infeasible = Trial(
        number=4, parameters={}, state=TrialState.COMPLETED, infeasible=True, infeasible_reason="too big"
    )

    assert [unpack_trial(pack_trial(one)) for one in (trial, infeasible)] == [trial, infeasible]
    assert unpack_trial(pack_trial(trial), measured=False).measurements == ()


def test_a_completed_trial_takes_a_kibibyte(store: SqliteStore) -> None:
    """With all the measurements that it keeps."""
    trials = [completed(number, MAX_KEPT_MEASUREMENTS) for number in range(1, 501)]
    state = write(store, CatalogState(), RECORD)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    snapshot = state.studies[NAME]
    for trial in trials:
        snapshot = snapshot.with_trial(trial)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert snapshot.trial_count == 500
    assert taken / 500 <= 1024


def test_measurements_are_thinned_evenly() -> None:
    """The first and the last stay."""
    steps = [one.step for one in thin_measurements(completed(1, 200).measurements, 5)]

    assert steps == [0, 50, 100, 149, 199]
    assert thin_measurements(completed(1, 5).measurements, 5) == completed(1, 5).measurements


def test_a_block_is_loaded_as_it_was_committed(store: SqliteStore) -> None:
    """Each trial and operation is a document of its own."""
    written = write(
        store, CatalogState(), RECORD, TrialRecord(NAME, OPEN), TrialRecord(NAME, completed(2)), OPERATION
    )

    loaded = store.load()

    assert loaded.studies == written.studies
    assert list(loaded.studies[NAME].iter_trials()) == [OPEN, completed(2)]
    assert list(loaded.study_order.list_children("p")) == [NAME]
    assert OPERATION.name == "projects/p/locations/here/operations/s-3"


def test_a_change_of_a_trial_writes_that_trial(store: SqliteStore) -> None:
    state = write(store, CatalogState(), RECORD, TrialRecord(NAME, OPEN))
    draft = StateDraft(state)

    draft.put(TrialRecord(NAME, msgspec.structs.replace(OPEN, state=TrialState.COMPLETED)))

    assert list(draft.changes) == [("trials", f"{NAME}/trials/1")]
    assert state.studies[NAME].open_trials == {1: OPEN}
    assert draft.studies[NAME].open_trials == {}
    assert draft.studies[NAME].packed_trials.keys() == {1}


def test_with_a_study_all_of_it_goes(store: SqliteStore) -> None:
    """Of the state, and of the disk."""
    state = write(
        store, CatalogState(), RECORD, TrialRecord(NAME, OPEN), TrialRecord(NAME, completed(2)), OPERATION
    )

    after = write(store, state, gone=RECORD)

    assert not after.studies
    assert not after.study_order.list_children("p")
    assert store.load() == CatalogState()
    # Nothing of the earlier one comes back with a study of the same name.
    write(store, after, RECORD)
    assert store.load().studies == {NAME: StudySnapshot(RECORD)}


def test_single_records_are_deleted(store: SqliteStore) -> None:
    state = write(
        store, CatalogState(), RECORD, TrialRecord(NAME, OPEN), TrialRecord(NAME, completed(2)), OPERATION
    )

    state = write(store, state, gone=TrialRecord(NAME, completed(2)))
    state = write(store, state, gone=OPERATION)

    assert state.studies[NAME] == StudySnapshot(RECORD, {1: OPEN})
    assert store.load().studies == state.studies
