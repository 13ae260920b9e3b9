"""tests.load"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.load import drive


class Alarm(BaseException):
    """What pytest-timeout raises in its handler is none of Exception either."""


@pytest.fixture
def alarm() -> Iterator[None]:
    def raise_alarm(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, raise_alarm)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("alarm")
def test_what_a_signal_handler_raises_ends_a_load_with_its_tasks() -> None:
    ended: list[str] = []

    async def watch() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("watch")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGUSR1)

    with pytest.raises(Alarm):
        drive(main())

    assert ended == ["watch"]
