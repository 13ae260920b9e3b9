from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from autoscaler.child_launcher import RunningChild, module_command, run_child
from tests.autoscaler.pool import children, descriptors
from tests.bounds import HANG_SECONDS

ECHO = "import sys; print(sys.stdin.read().upper())"
# Ends by SIGTERM, but not its child in the same group.
PARENT = """
import subprocess, time
subprocess.Popen(["sleep", "600"])
print("at work", flush=True)
time.sleep(600)
"""
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('at work', flush=True); time.sleep(600)"

Block = Callable[[RunningChild], Awaitable[None]]


async def run_program(
    program: str, block: Block, *, stdin: bytes = b"", stderr: int | None = None, grace: float = 30
) -> int | None:
    running = run_child(
        (sys.executable, "-c", program),
        environment=os.environ,
        stdin=stdin,
        stderr=stderr,
        grace_seconds=grace,
    )
    async with running as child:
        await block(child)
    return child.process.exit.result()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Bounded in time; no process and no descriptor may be left."""

    async def bounded() -> None:
        async with asyncio.timeout(HANG_SECONDS):
            before = children(), descriptors()
            await test()
            await asyncio.sleep(0)  # transports close a turn later
            assert (children(), descriptors()) == before

    asyncio.run(bounded())


async def read_all(child: RunningChild) -> None:
    assert await child.output.read() == b"HELLO\n"


async def leave_early(child: RunningChild) -> None:
    assert await child.output.readline() == b"at work\n"
    raise ZeroDivisionError


def test_input_output_and_exit_code() -> None:
    async def main() -> None:
        assert await run_program(ECHO, read_all, stdin=b"hello") == 0

    run(main)


def test_large_input_is_given_whole() -> None:
    """Though the child reads it only once it has started."""

    async def read_length(child: RunningChild) -> None:
        assert await child.output.read() == b"4194304\n"

    async def main() -> None:
        await run_program("import sys; print(len(sys.stdin.read()))", read_length, stdin=b"x" * (4 << 20))

    run(main)


def test_stderr_is_where_it_was_asked_to_be(tmp_path: Path) -> None:
    async def ignore(child: RunningChild) -> None:
        await child.wait_until_gone()

    async def main() -> None:
        with (tmp_path / "log").open("wb") as log:
            code = await run_program(
                "import sys; print('why', file=sys.stderr); sys.exit(3)", ignore, stderr=log.fileno()
            )
        assert (code, (tmp_path / "log").read_text()) == (3, "why\n")

    run(main)


@pytest.mark.parametrize(("program", "code"), [(PARENT, -signal.SIGTERM), (DEAF, -signal.SIGKILL)])
def test_a_block_that_raises_ends_the_child_and_its_group(program: str, code: int) -> None:
    """One that does not listen is killed when the grace is over."""
    ended: list[RunningChild] = []

    async def note(child: RunningChild) -> None:
        ended.append(child)
        await leave_early(child)

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await run_program(program, note, grace=30 if program is PARENT else 0.1)
        assert ended[0].process.exit.result() == code

    run(main)


def test_a_child_can_be_stopped_inside_the_block() -> None:
    async def stop(child: RunningChild) -> None:
        assert await child.output.readline() == b"at work\n"
        await child.stop()
        assert await child.output.read() == b""

    async def main() -> None:
        assert await run_program(PARENT, stop) == -signal.SIGTERM

    run(main)


def test_what_cannot_be_started_leaves_nothing() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            async with run_child(
                ("/no/such/program",), environment={}, stdin=b"", stderr=None, grace_seconds=1
            ):
                raise AssertionError("it was started")

    run(main)


def test_a_module_runs_bound_to_its_lifeline(tmp_path: Path) -> None:
    """Its lifeline's number is put into the command."""
    (tmp_path / "program.py").write_text(ECHO)

    async def main() -> None:
        running = run_child(
            module_command("program"),
            environment={**os.environ, "PYTHONPATH": str(tmp_path)},
            stdin=b"hello",
            grace_seconds=30,
        )
        async with running as child:
            await read_all(child)
        assert child.process.exit.result() == 0

    run(main)
