from __future__ import annotations

import asyncio
import os

import pytest

from autoscaler import machine
from autoscaler.scaling_loop import MemoryDemand
from serving.gateway.control.placement.server_load_meter import ServerLoadMeter

MIB = 1 << 20


class FakeNode:
    pids = (os.getpid(),)


class FakePool:
    """One node, which is this process."""

    def nodes(self, key: str) -> list[FakeNode]:
        return [FakeNode()]

    def count_cores(self) -> int:
        return 2


class FakeAutoscaler:
    awake = ("v",)

    def sum_memory_demand(self) -> MemoryDemand:
        return MemoryDemand(needed=300 * MIB, missing=300 * MIB, total=400 * MIB)


def test_what_processes_use_is_averaged_over_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """From when they are first seen, and less when a thread has ended."""
    now, ran, waited = 1000.0, 0.0, 0.0
    monkeypatch.setattr(machine, "cpu_seconds", lambda pid: ran)
    monkeypatch.setattr(machine, "all_threads_run_delay", lambda pid: waited)
    meter = ServerLoadMeter(FakeAutoscaler(), FakePool(), lambda: now)  # type: ignore[arg-type]

    async def measure() -> None:
        await meter.measure()

    asyncio.run(measure())
    assert (meter.load.memory, meter.load.processors) == (1.5, 0.0)
    now, ran, waited = 1060.0, 60.0, 30.0
    asyncio.run(measure())
    assert meter.load.processors == pytest.approx(90 / 60 / 2)
    now, waited = 1120.0, 10.0
    asyncio.run(measure())
    assert meter.load.processors == pytest.approx(0.0)


def test_a_process_that_is_gone_uses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pid: int) -> float:
        raise ProcessLookupError

    monkeypatch.setattr(machine, "cpu_seconds", fail)
    meter = ServerLoadMeter(FakeAutoscaler(), FakePool())  # type: ignore[arg-type]
    asyncio.run(meter.measure())
    assert meter.load.processors == 0.0


def test_threads_that_wait_are_counted() -> None:
    """Any process has waited for a processor; nothing of one that is gone."""
    assert machine.all_threads_run_delay(os.getpid()) > 0
    assert machine.all_threads_run_delay(2**22 + 1) == 0
