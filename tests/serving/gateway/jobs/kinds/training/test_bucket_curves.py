"""The metrics of jobs whose folders are in buckets, read by real processes from a real emulator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoscaler.supervision import Supervisor
from serving.gateway.jobs.kinds.training import bucket_curves
from serving.gateway.jobs.kinds.training.bucket_curves import BucketCurveReader
from tests.bounds import HANG_SECONDS
from tests.emulator import Emulator, running_emulator
from tests.tuning.metrics.event_writer import write_event


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with running_emulator() as found:
        yield found


async def until(reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not reached():  # noqa: ASYNC110  another process takes part: there is no event for it
            await asyncio.sleep(0.02)


def test_a_folder_is_followed_while_it_is_asked_for(emulator: Emulator) -> None:
    """Its process ends when nobody asks for it any more."""
    folder = f"gs://{emulator.bucket('curves')}/out"
    first = write_event("loss", 2.0, 0)
    emulator.put(f"{folder}/train/events.out.tfevents.1", first)
    environment = {"PATH": os.environ["PATH"], "STORAGE_EMULATOR_HOST": emulator.url}

    async def main() -> None:
        async with Supervisor() as supervisor:
            reader = BucketCurveReader(supervisor, environment, idle_seconds=1.0, poll_seconds=0.1)
            assert reader.read(folder) == {}
            await until(lambda: reader.read(folder) == {"loss": {"train": [(0.0, 2.0)]}})
            emulator.put(f"{folder}/train/events.out.tfevents.1", first + write_event("loss", 1.0, 5))
            await until(lambda: reader.read(folder) == {"loss": {"train": [(0.0, 2.0), (5.0, 1.0)]}})
            await until(lambda: not supervisor.tasks)

    asyncio.run(main())


def test_processes_are_few_and_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_curves, "_COMMAND", ("/bin/sleep", "600"))

    async def main() -> None:
        async with Supervisor() as supervisor:
            reader = BucketCurveReader(supervisor, {})
            for number in range(5):
                reader.read(f"gs://b/{number}")
            await until(lambda: len(supervisor.tasks) <= 3)
            reader.stop()
            await until(lambda: not supervisor.tasks)

    asyncio.run(main())
