from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from serving.gateway.state.study_records import StudySnapshot
from serving.gateway.studies import parameter_importance
from serving.gateway.studies.parameter_importance import ParameterImportance
from tests.serving.gateway.catalog.study_world import StudyWorld


class FakeService:
    def __init__(self) -> None:
        self.measured: list[int] = []

    async def measure(self, snapshot: StudySnapshot) -> Mapping[str, float]:
        await asyncio.sleep(0)
        self.measured.append(len(snapshot.packed_trials))
        return {"x": 1.0}


def build_study(uid: str) -> StudySnapshot:
    snapshot = StudyWorld().snapshot
    study = msgspec.structs.replace(snapshot.record.study, uid=uid)
    return snapshot.with_record(msgspec.structs.replace(snapshot.record, study=study))


def test_it_is_measured_once_for_as_many_trials_as_are_completed() -> None:
    """However many ask at a time."""
    world, service = StudyWorld(), FakeService()
    importance = ParameterImportance(service.measure)

    async def ask_three_times() -> None:
        await asyncio.gather(*(importance.get_shares(world.snapshot) for _ in range(3)))

    async def main() -> None:
        await ask_three_times()
        world.request()
        await ask_three_times()
        world.complete(1, infeasible=True, reason="no memory")
        await ask_three_times()

    asyncio.run(main())

    assert service.measured == [0, 1]


def test_what_nobody_asks_for_any_more_is_forgotten() -> None:
    """The study that was asked for the longest time ago."""
    service, kept = FakeService(), parameter_importance._MAX_KEPT
    importance = ParameterImportance(service.measure)
    snapshots = [build_study(f"study {number}") for number in range(kept + 1)]

    async def main() -> None:
        for number in (*range(kept + 1), 1, 0, 1):
            await importance.get_shares(snapshots[number])

    asyncio.run(main())

    assert len(service.measured) == kept + 2
