"""The process that suggests, as the gateway starts it and speaks to it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from autoscaler.pools.local_pool import LocalPool
from autoscaler.supervision import Supervisor
from serving.artifacts.child_environment import sanitize_environment
from serving.gateway.control.pilot_specs import framework_pilot_spec
from serving.gateway.studies.suggestion_process import SuggesterLauncher, SuggesterLost
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.catalog.study_world import StudyWorld
from tests.serving.gateway.world import FakePool
from tuning.messages import SuggestionAnswer, SuggestionRequest

WITHIN = HANG_SECONDS / 2


def request(count: int) -> bytes:
    study = StudyWorld().snapshot.record.study
    return msgspec.json.encode(SuggestionRequest(study, (), count, 1)) + b"\n"


def read_command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def run(main: Callable[[SuggesterLauncher], Awaitable[None]]) -> None:
    async def bounded() -> None:
        pool = FakePool(lambda _: None)  # it cannot fork
        async with asyncio.timeout(HANG_SECONDS):
            await main(
                SuggesterLauncher(pool, framework_pilot_spec("", "", sanitize_environment(os.environ)))
            )

    asyncio.run(bounded())


def test_equal_requests_have_equal_answers_in_any_process() -> None:
    async def main(launcher: SuggesterLauncher) -> None:
        found = []
        for _ in range(2):
            async with launcher.connect() as suggester:
                found += [await suggester.ask(request(3), WITHIN) for _ in range(2)]
        assert isinstance(found[0], SuggestionAnswer)
        assert len(found[0].points) == 3
        assert found == [found[0]] * 4

    run(main)


def test_a_process_that_is_killed_is_lost() -> None:
    """It is gone after the block."""

    async def main(launcher: SuggesterLauncher) -> None:
        pid = 0
        with pytest.raises(SuggesterLost, match="has ended"):
            async with launcher.connect() as suggester:
                await suggester.ask(request(1), WITHIN)
                pid = suggester.child.process.pid
                assert not suggester.has_ended
                os.kill(pid, signal.SIGKILL)
                await suggester.ask(request(1), WITHIN)
        assert suggester.has_ended
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(main)


def test_other_processes_come_first() -> None:
    async def main(launcher: SuggesterLauncher) -> None:
        async with launcher.connect() as suggester:
            pid = suggester.child.process.pid
            assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)

    run(main)


def test_a_process_that_does_not_answer_is_lost() -> None:
    """It is killed, and not waited for."""

    async def main(launcher: SuggesterLauncher) -> None:
        with pytest.raises(SuggesterLost, match=r"within 0\.05 s"):
            async with launcher.connect() as suggester:
                os.kill(suggester.child.process.pid, signal.SIGSTOP)
                await suggester.ask(request(1), 0.05)

    run(main)


def test_it_is_forked_from_a_pilot() -> None:
    """Which has imported all it needs; what it answers is what one that started cold does."""

    async def main() -> None:
        pilot = framework_pilot_spec("", "", sanitize_environment(os.environ))
        async with asyncio.timeout(HANG_SECONDS), Supervisor() as tasks:
            pool = LocalPool(lambda _: None, drain=1.0, supervisor=tasks, starts=1)
            async with pool:
                pool.set_wanted_pilots([pilot])
                await pool.wait_for_pilots(HANG_SECONDS)
                async with SuggesterLauncher(pool, pilot).connect() as suggester:
                    command = read_command(suggester.child.process.pid)
                    forked = await suggester.ask(request(3), WITHIN)
        async with SuggesterLauncher(FakePool(lambda _: None), pilot).connect() as suggester:
            assert await suggester.ask(request(3), WITHIN) == forked
        assert b"autoscaler.pilot" in command

    asyncio.run(main())
