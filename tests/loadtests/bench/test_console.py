from __future__ import annotations

from pathlib import Path

from loadtests.bench.console import Paints, Watch, format_paints, format_watches
from loadtests.bench.targets.many_versions import replace_with_copies
from serving.gateway.state.store import SqliteStore
from tests.many_versions import deploy


def test_what_was_measured_in_a_turn_is_compared_with_its_own_turn() -> None:
    """In the second the machine was busy with something else."""
    quick, slow = [1000.0] * 980 + [2000.0] * 20, [1000.0] * 950 + [3000.0] * 50
    turns = (
        [(0, 0.10, quick), (1, 0.12, quick), (10, 0.15, slow)],
        [(0, 0.60, slow), (1, 0.62, slow), (10, 0.65, slow)],
        [(0, 0.12, quick), (1, 0.14, quick), (10, 0.17, slow)],
    )
    watches = [Watch(viewers, cpu, micros, 0) for turn in turns for viewers, cpu, micros in turn]

    rows = [
        [cell.strip() for cell in line.split("|")[2:-1]] for line in format_watches("t", watches).splitlines()
    ]

    assert rows[2:] == [
        ["12.0 %", "14.0 %", "17.0 %"],
        ["", "2.0 %", "5.0 %"],
        ["1.00", "1.00", "1.00"],
        ["2.00", "2.00", "3.00"],
        ["", "1.00", "1.50"],
    ]


def test_the_first_visit_stands_by_itself() -> None:
    assert format_paints(Paints(400.0, [120.0, 90.0, 100.0])).splitlines()[2:] == [
        "| of the server's first visit | 400 |",
        "| later, median of 3 | 100 |",
        "| later, the slowest | 120 |",
    ]


def test_copies_take_the_place_of_their_source(tmp_path: Path) -> None:
    """The first has its uid, by which its folder is kept."""
    deploy(tmp_path / "state", 1, 1)

    names = replace_with_copies(tmp_path / "state", 2, 3)

    store = SqliteStore(tmp_path / "state" / "state.db")
    state = store.load()
    store.close()
    assert [record.name for record in state.sorted_versions] == list(names)
    assert len({record.uid for record in state.sorted_versions}) == len(names) == 6
    assert state.sorted_versions[0].uid == f"{0:016x}"
    assert {record.deployed for record in state.sorted_versions} == {state.sorted_versions[0].deployed}
