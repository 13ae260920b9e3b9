"""What is asked of all jobs and operations, kept from state to state, and what keeping it costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gateway.api.query.paging import PagedList, encode_page_token
from serving.gateway.catalog import jobs as rules
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.job_map import JobMap
from serving.gateway.state.persistent_map import PersistentMap
from serving.gateway.state.record_indexes import JobIndex, OperationIndex
from serving.gateway.state.records import JobRecord, OperationRecord
from serving.gateway.state.sorted_index import SortedSequence
from serving.resources import Job, JobState, Operation, OperationMetadata, PredictionOutput

MANY, FEW = 100_000, 10
ENDED = JobState.SUCCEEDED


def job(number: int, state: JobState, project: str = "p", records: str = "2") -> JobRecord:
    name = f"projects/{project}/jobs/j{number}"
    end = (
        f"2030-01-01T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        if state.is_terminal
        else ""
    )
    output = PredictionOutput(prediction_count=records, error_count="1")
    body = Job(job_id=f"j{number}", state=state, end_time=end, prediction_output=output)
    return JobRecord(name=name, project=project, uid=f"{number:016x}", number=number, job=body)


def operation(number: int, *, done: bool, project: str = "p") -> OperationRecord:
    name = f"projects/{project}/operations/create_m_v-{number}"
    metadata = OperationMetadata(
        create_time="t", end_time=f"{number % 7}" if done else "", operation_type="X"
    )
    return OperationRecord(
        name=name, project=project, operation=Operation(name=name, metadata=metadata, done=done)
    )


@given(st.lists(st.integers(0, 2000), max_size=1500), st.lists(st.integers(0, 2000), max_size=30))
@settings(max_examples=50, deadline=None)
def test_sorted_values(start: list[int], toggled: list[int]) -> None:
    """As a sorted list, whatever comes and goes, over several chunks."""
    there = set(start)
    found = SortedSequence.from_values(there)
    for value in toggled:
        found = found.without_value(value) if value in there else found.with_value(value)
        there ^= {value}
    expected = sorted(there)

    assert list(found) == expected
    assert len(found) == len(expected)
    assert [found[place] for place in range(len(found))] == expected
    assert tuple(found[-5:]) == tuple(expected[-5:])
    with pytest.raises(IndexError):
        found[len(found)]


def test_sorted_values_grow_one_by_one() -> None:
    """In either direction: chunks are split and stay in order."""
    up: SortedSequence[int] = SortedSequence()
    down: SortedSequence[int] = SortedSequence()
    for value in range(3000):
        up, down = up.with_value(value), down.with_value(-value)

    assert list(up) == list(range(3000))
    assert list(down) == list(range(-2999, 1))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40))))
def test_a_table(changes: list[tuple[bool, int]]) -> None:
    """As a dict, of which every version stays what it was."""
    table: PersistentMap[int, int] = PersistentMap.from_mapping({})
    expected: dict[int, int] = {}
    versions = []
    for put, name in changes:
        versions.append((table, expected.copy()))
        if put or name not in expected:
            table, expected = table.with_item(name, len(versions)), {**expected, name: len(versions)}
        else:
            table = table.without_item(name)
            del expected[name]

    for kept, known in [*versions, (table, expected)]:
        assert dict(kept) == known
        assert len(kept) == len(known)
        assert all(name in kept for name in known)
    assert PersistentMap.from_mapping(table) is table


RECORDS = st.one_of(
    st.builds(job, st.integers(1, 12), st.sampled_from(JobState), st.sampled_from("p")),
    st.builds(operation, st.integers(1, 12), done=st.booleans(), project=st.sampled_from("p")),
)


@given(st.lists(st.tuples(RECORDS, st.booleans()), max_size=40))
def test_an_index_that_was_changed_is_that_of_what_is_there(
    steps: list[tuple[JobRecord | OperationRecord, bool]],
) -> None:
    """Whatever came, changed and went; what jobs had to say of records stays when they go."""
    state = CatalogState()
    for record, put in steps:
        draft = StateDraft(state)
        there = record.name in (state.jobs if isinstance(record, JobRecord) else state.operations)
        if put or not there:
            draft.put(record)
        else:
            kept = state.jobs if isinstance(record, JobRecord) else state.operations
            draft.delete(kept[record.name])
        state = draft.to_state()
    fresh = JobIndex.from_jobs(state.jobs.values())

    assert state.operation_index == OperationIndex.from_operations(state.operations.values())
    for name in ("by_project", "unfinished", "ended", "states"):
        assert getattr(state.job_index, name) == getattr(fresh, name)
    assert state.job_index.last_number >= fresh.last_number
    assert all(state.job_index.records[key] >= count for key, count in fresh.records.items())


def crowd(count: int) -> CatalogState:
    """So many ended jobs and done operations, and a job that is at work."""
    found = [job(number, ENDED) for number in range(1, count + 1)]
    found.append(job(count + 1, JobState.RUNNING))
    done = [operation(number, done=True) for number in range(count)]
    state = CatalogState(
        jobs=JobMap.from_mapping({record.name: record for record in found}),
        operations={record.name: record for record in done},
    )
    return StateDraft(state).to_state()


@pytest.fixture(scope="module")
def crowds() -> tuple[CatalogState, CatalogState]:
    return crowd(FEW), crowd(MANY)


def change(state: CatalogState) -> None:
    """What a commit about a job does beside the disk."""
    draft = StateDraft(state)
    number = state.job_index.last_number
    draft.put(job(number, JobState.RUNNING, records="9"))
    draft.put(operation(number, done=True))
    after = draft.to_state()
    assert len(rules.list_unfinished_jobs(after)) == 1
    assert rules.list_queue_positions(after) == {}
    assert sum(after.job_index.states.values()) == number


def list_a_page(state: CatalogState) -> None:
    """The page in the middle of the list."""
    found = rules.list_jobs(state, "p")
    middle = found[len(found) // 2]
    token = encode_page_token(middle[1])
    listing = PagedList(found, lambda key: {"name": key[1]}, lambda key: key[1], lambda _: middle)
    rows, _ = listing.page({"pageToken": token, "pageSize": "2"})
    assert [row["name"] for row in rows] == [found[len(found) // 2 + 1 + place][1] for place in range(2)]


@pytest.mark.parametrize("do", [change, list_a_page])
def test_a_hundred_thousand_that_have_ended_cost_nothing(
    crowds: tuple[CatalogState, CatalogState], do: Callable[[CatalogState], None]
) -> None:
    """A change with the queue after it, and a page, are as quick as beside ten."""
    times: dict[int, list[float]] = {FEW: [], MANY: []}
    for _ in range(60):
        for count, state in zip((FEW, MANY), crowds, strict=True):
            begin = time.perf_counter()
            do(state)
            times[count].append(time.perf_counter() - begin)

    few, many = (statistics.median(times[count]) for count in (FEW, MANY))
    print(f"{do.__name__}: {few * 1e6:.0f} us beside {FEW}, {many * 1e6:.0f} us beside {MANY}")
    assert many < 4 * few + 1e-3
