"""serving.node.acceleration_controller"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from serving import acceleration_record
from serving.acceleration.activation import store_result
from serving.acceleration.verification import verify_candidates
from serving.acceleration_record import AccelerationKey, BatchingFinding, RecordLocation
from serving.node import acceleration_controller as module
from serving.node.acceleration_controller import (
    AccelerationController,
    allocate_record_location,
)
from serving.node.batch_equivalence import BatchingDecision
from serving.runtimes import LoadSpec
from tests.bounds import HANG_SECONDS
from tests.serving.acceleration.models import GOOD, WRONG, Fake, kept, offer, quick

KEY = AccelerationKey("digest", "libraries", "processor")
SOURCE = LoadSpec(Path(), "SCIKIT_LEARN")
ROWS = np.ones((2, 3))
# Typical rows do not show these; comparisons while the node serves may.
RARELY_WRONG = {"many rows", "missing values", "ties", "zeros"}


def here(work: Callable[[], None]) -> None:
    work()


def studied(folder: Path) -> RecordLocation:
    """A verdict by which GOOD serves."""
    store_result(folder, KEY, verify_candidates(Fake([GOOD]), budget=0.0), 0.1)
    return RecordLocation(str(folder), KEY)


def mounted(place: RecordLocation, runtime: Any, counts: list[int] | None = None) -> AccelerationController:
    acceleration = AccelerationController(SOURCE, lambda: place, counts)
    acceleration.activate(runtime)
    return acceleration


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons rest no longer than they must."""
    for name in ("_FIRST_DELAY", "_DELAY", "_REST_FACTOR"):
        monkeypatch.setattr(module, name, 0.0)


def test_a_fitting_verdict_is_taken_up(tmp_path: Path) -> None:
    runtime = Fake([GOOD])
    acceleration = mounted(studied(tmp_path), runtime)

    assert runtime.faster is not None
    assert acceleration.collect_stats() == {"way": "by good", "compared": 0, "different": 0}


def test_a_verdict_for_other_libraries_is_not(tmp_path: Path) -> None:
    runtime = Fake([GOOD])
    place = RecordLocation(studied(tmp_path).folder, AccelerationKey("digest", "others", "processor"))

    assert mounted(place, runtime).collect_stats()["way"] == "the plain way"
    assert runtime.faster is None


@pytest.mark.parametrize("runtime", [object(), Fake([])])
def test_no_place_is_looked_for_where_there_are_no_offers(runtime: Any) -> None:
    def find() -> RecordLocation:
        raise AssertionError

    assert AccelerationController(SOURCE, find).activate(runtime) is None


def test_without_a_place_the_plain_path_serves() -> None:
    def find() -> RecordLocation:
        raise PermissionError("no entry")

    assert AccelerationController(SOURCE, find).activate(Fake([GOOD])) is None


def prepared(folder: Path, record: acceleration_record.AccelerationRecord) -> RecordLocation:
    """A record that somebody has prepared, and an empty folder beside it."""
    acceleration_record.write_record(folder / "prepared", record)
    return RecordLocation(str(folder / "own"), KEY, str(folder / "prepared"))


def good_record(**changes: Any) -> acceleration_record.AccelerationRecord:
    return acceleration_record.AccelerationRecord(
        key=KEY,
        ranges=(acceleration_record.RowRange(rows=1, way=GOOD.name, seconds=1e-5, plain_seconds=1e-4),),
        tried=(acceleration_record.CandidateOutcome(name=GOOD.name, **changes),),
        batching=BatchingFinding(True, "rows are equal"),
    )


def test_a_prepared_record_is_used_at_once(tmp_path: Path) -> None:
    runtime = Fake([GOOD])
    acceleration = mounted(prepared(tmp_path, good_record()), runtime)

    assert runtime.faster is not None
    assert acceleration.prepared_batching == BatchingDecision(True, "rows are equal")
    assert not (tmp_path / "own").exists()


def test_a_record_of_its_own_comes_first(tmp_path: Path) -> None:
    """It may be withdrawn, which the prepared one never is."""
    place = prepared(tmp_path, good_record())
    acceleration_record.withdraw_acceleration(tmp_path / "own", "row 3", good_record())
    runtime = Fake([GOOD])

    assert mounted(place, runtime).collect_stats()["way"] == "the plain way (row 3)"
    assert runtime.faster is None


def test_a_prepared_record_that_does_not_match_is_ignored_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    other = msgspec.structs.replace(good_record(), key=AccelerationKey("digest", "others", "processor"))
    runtime = Fake([GOOD])
    acceleration = mounted(prepared(tmp_path, other), runtime)

    assert runtime.faster is None
    assert acceleration.prepared_batching is None
    assert [record.message for record in caplog.records] == [
        f"the acceleration record in {tmp_path / 'prepared'} is ignored: "
        "it is for other versions of libraries or code"
    ]


@pytest.mark.parametrize("wrong", sorted(WRONG.keys() - RARELY_WRONG))
def test_a_prepared_record_that_names_a_wrong_candidate_is_not_used(tmp_path: Path, wrong: str) -> None:
    """Whoever wrote it: that is told, stays so, and leaves the prepared folder as it is."""
    forged = msgspec.structs.replace(good_record(), spread={"": 1e9})
    place, runtime = prepared(tmp_path, forged), Fake([offer(GOOD.name, WRONG[wrong])])
    acceleration = mounted(place, runtime)

    assert runtime.faster is None
    assert acceleration.prepared_batching is None
    assert "the prepared record does not hold" in str(acceleration.collect_stats()["way"])
    assert "the prepared record does not hold" in str(mounted(place, runtime).collect_stats()["way"])
    assert acceleration_record.read_record(tmp_path / "prepared") == forged


def test_a_converted_model_in_a_prepared_folder_is_not_read(tmp_path: Path) -> None:
    """Only its own code makes one, of the files that it serves."""
    candidate = kept(GOOD.name)
    runtime = Fake([candidate])
    place = prepared(tmp_path, good_record(form="form-0", checksum=0))
    (tmp_path / "prepared" / "form-0").write_text("2.0")
    mounted(place, runtime)

    assert runtime.faster is not None
    assert np.asarray(runtime.predict(ROWS)).tolist() == quick(ROWS).tolist()


async def _ask(runtime: Fake, until: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not until():
            runtime.predict(ROWS)
            await asyncio.sleep(0.001)


@pytest.mark.usefixtures("at_once")
def test_calls_are_compared_one_after_the_other(tmp_path: Path) -> None:
    runtime, counts = Fake([GOOD]), [0, 0]
    acceleration = mounted(studied(tmp_path), runtime, counts)

    async def main() -> None:
        await acceleration.verify_and_monitor(here, is_batching=True)
        await _ask(runtime, lambda: counts[0] >= 3)

    asyncio.run(main())

    assert counts[1] == 0


@pytest.mark.usefixtures("at_once")
def test_a_difference_is_counted_written_down_and_the_end(tmp_path: Path) -> None:
    wrong = offer(GOOD.name, lambda rows: quick(rows) + 1)
    runtime, counts = Fake([wrong]), [0, 0]
    place = studied(tmp_path)
    acceleration = mounted(place, runtime, counts)

    async def main() -> None:
        await acceleration.verify_and_monitor(here, is_batching=True)
        await _ask(runtime, lambda: counts[1] > 0)

    asyncio.run(main())
    verdict = acceleration_record.read_record(tmp_path)

    assert np.asarray(runtime.predict(ROWS)).tolist() == quick(ROWS).tolist()
    assert counts == [1, 1]
    assert verdict is not None
    assert "differs in some bit" in verdict.withdrawn
    again = Fake([wrong])
    assert "differs in some bit" in str(mounted(place, again).collect_stats()["way"])
    assert again.faster is None


@pytest.mark.usefixtures("at_once")
def test_what_another_node_found_counts_too(tmp_path: Path) -> None:
    """At the next comparison, and not as a difference of its own."""
    runtime, counts = Fake([GOOD]), [0, 0]
    acceleration = mounted(studied(tmp_path), runtime, counts)
    acceleration_record.withdraw_acceleration(tmp_path, "another node's row 7")

    async def main() -> None:
        await acceleration.verify_and_monitor(here, is_batching=True)
        await _ask(runtime, lambda: acceleration.collect_stats()["way"] != "by good")

    asyncio.run(main())

    assert counts == [0, 0]


def differs_from_seven_rows_on(rows: Any) -> Any:
    return quick(rows) + (1.0 if len(rows) == 7 else 0.0)


@pytest.mark.parametrize(
    ("way", "merging", "told"),
    [
        (quick, True, "by good"),
        (differs_from_seven_rows_on, True, "the plain way"),
        (differs_from_seven_rows_on, False, "by good"),
    ],
)
def test_what_a_study_in_the_background_finds_serves_if_requests_can_share_its_calls(
    way: Callable[[Any], Any], merging: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they share calls already. Until that is known the plain path serves."""
    place = RecordLocation(str(tmp_path), KEY)

    async def study_at_once(self: AccelerationController, place: RecordLocation) -> None:
        studied(tmp_path)

    monkeypatch.setattr(AccelerationController, "_verify_in_background", study_at_once)
    runtime = Fake([offer(GOOD.name, way)], exact=False)
    acceleration = mounted(place, runtime)
    ways: list[bool] = []

    def watched(work: Callable[[], None]) -> None:
        work()
        ways.append(runtime.faster is not None)

    asyncio.run(acceleration.verify_and_monitor(watched, is_batching=merging))

    assert acceleration.collect_stats()["way"] == told
    assert (runtime.faster is not None) == (told == "by good")
    assert not any(ways[:-1])


def test_the_cache_keeps_the_latest_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One folder for each model with its libraries and processor."""
    monkeypatch.setattr(module, "_MAX_RECORDS", 2)
    cache = tmp_path / "cache"
    for name in ("a", "b", "c", "d"):
        model_dir = tmp_path / name
        model_dir.mkdir()
        (model_dir / "model.pkl").write_text(name)
        place = allocate_record_location(cache, model_dir)
        assert place == allocate_record_location(cache, model_dir)
        acceleration_record.write_record(
            Path(place.folder), acceleration_record.AccelerationRecord(key=place.key)
        )

    assert len(list((cache / "acceleration").iterdir())) == 3
