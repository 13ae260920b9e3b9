"""The server's side of pilots: start them, restart them, and fork nodes from them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from autoscaler import linux, machine
from autoscaler.errors import is_shortage
from autoscaler.pilot import PilotSetup
from autoscaler.pools import PilotSpec, PilotState, PilotStatus
from autoscaler.pools.node_pipes import NodePipes
from autoscaler.pools.node_socket import NodeSocket
from autoscaler.pools.timing import DEFAULT_TIMING, PoolTiming
from autoscaler.processes import (
    ChildProcess,
    ProcessOutput,
    describe_exit,
    describe_thread_shortage,
    spawn_child,
)

logger = logging.getLogger(__name__)

StartTask = Callable[[str, Coroutine[Any, Any, None], str], "asyncio.Task[None]"]

# Seconds that messages of a pilot that has ended may still take.
_GRACE = 0.2
# A pilot that ran for so many seconds is stable; others are started again later each time.
_STABLE_SECONDS = 30.0
# So often one that was killed from outside is started again at once; nodes wait for it, so many seconds.
_MOST_KILLS, _REPLACED_WITHIN = 3, 5.0


@dataclass(frozen=True, slots=True)
class PilotPolicy:
    """Whether pilots run, and for how many seconds after the last process that needs them.

    Without `linger_seconds`, for as long as they are asked for, and as the pool's timing says where they are
    not.
    """

    enabled: bool = True
    linger_seconds: float | None = None

    @classmethod
    def parse(cls, setting: str | float) -> PilotPolicy:
        """From "off", "auto" or a number of seconds; raises ValueError."""
        match setting:
            case "off":
                return cls(enabled=False)
            case "auto":
                return cls()
        linger = float(setting)
        if not linger >= 0:
            raise ValueError(f"pilots: {setting} is not a number of seconds")
        return cls(linger_seconds=linger)


class PilotProcess:
    """One pilot process, from its start to its end; see `autoscaler.pilot` for the messages on its socket."""

    def __init__(self, spec: PilotSpec, timing: PoolTiming) -> None:
        self.state = PilotState.STARTING
        self.reason = ""
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self._spec = spec
        self._timing = timing
        self._seconds: float | None = None
        self._forked = 0
        self._child: ChildProcess | None = None
        self._link: socket.socket | None = None
        self._spares: dict[int, ChildProcess] = {}
        self._last_sign_at = 0.0
        self._fork_error: OSError | None = None  # why it could not make the next spare
        self._killed = False
        self.starved = False
        self.killed_from_outside = False
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._socket: NodeSocket | None = None
        self.settled: asyncio.Future[None] = loop.create_future()  # ready, or failed
        self._link_closed: asyncio.Future[None] = loop.create_future()  # no spare is left to take an order
        self._fork_failed: asyncio.Future[None] = loop.create_future()  # while it could not make a spare

    def status(self) -> PilotStatus:
        spare = next((pid for pid, child in self._spares.items() if not child.exit.done()), None)
        return PilotStatus(
            key=self._spec.key,
            state=self.state,
            pid=self._child.pid if self._child is not None and not self._child.exit.done() else None,
            spare=spare,
            age=None if self.ready_at is None else time.monotonic() - self.ready_at,
            seconds=self._seconds,
            forked=self._forked,
            reason=self.reason,
        )

    @property
    def address(self) -> str:
        """Where processes of this machine connect to it; "" unless it is a program of its own."""
        return "" if self._socket is None else self._socket.shared_address

    async def run(self) -> None:
        """Start it, and return when it has ended; when cancelled, end it first."""
        output: asyncio.Task[None] | None = None
        code: int | None = None
        try:
            lines = ProcessOutput(self._spawn_process(), f"pilot {self._spec.key}")
            output = asyncio.create_task(lines.read_lines(), name=f"output of pilot {self._spec.key}")
            code = await self._wait_for_exit()
            self._read_messages()
            await asyncio.wait((output,), timeout=_GRACE)
            self.killed_from_outside = code == -signal.SIGKILL and not self._killed
            self.starved = bool(lines.shortage) and self.ready_at is None and not self._killed
            how = (
                describe_thread_shortage(code, lines.shortage)
                if self.starved
                else describe_exit(code, lines.tail)
            )
            self._mark_failed(self.reason if self._killed else f"{self.reason} The pilot {how}".strip())
        except OSError as error:
            self.starved = is_shortage(error)
            self._mark_failed(f"Cannot start a pilot: {error}")
        finally:
            self._mark_settled()
            await _finish_despite_cancel(self._clean_up(output))

    def mark_stopped(self) -> None:
        self.state = PilotState.STOPPED
        self._mark_settled()

    async def fork_node(self, pipes: NodePipes) -> ChildProcess | None:
        """Fork a node; None, in a few seconds at most, when that does not work.

        Raises OSError when the machine is short of a resource: a cold start would fail too.
        """
        if self._link is None:
            return None
        if self._fork_error is not None:
            raise self._fork_error
        try:
            socket.send_fds(self._link, (b"n",), (*pipes.node_ends.as_tuple(), pipes.output))
        except OSError:  # it has ended, or has not read for long
            return None
        pipes.close_node_ends()
        hello = asyncio.ensure_future(pipes.receive_report())
        try:
            if not await self._await_hello(hello):
                return None
            message = await hello
        finally:
            hello.cancel()
        self._last_sign_at = time.monotonic()
        self._read_messages()  # the spare's message may not have been read yet
        child = self._spares.pop(message.get("pid", 0), None)
        if child is not None:
            self._forked += 1
        return child

    async def _wait_for_exit(self) -> int | None:
        """Wait for the end of the process, killed if it is not ready in time; returns its exit code.

        Time in which it got no processor does not count: on a machine that busy its successor would begin
        anew, and be killed too.
        """
        if self._child is None:
            return None
        begin, longest = time.monotonic(), self._timing.longest_pilot_start
        left = longest
        while left > 0 and not self.settled.done() and not self._child.exit.done():
            await asyncio.wait(
                (self.settled, self._child.exit), timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            left = longest + machine.all_threads_run_delay(self._child.pid) - (time.monotonic() - begin)
        if self.state is PilotState.STARTING and not self._child.exit.done():
            self._kill_stuck(f"It was not ready within {longest:g} s.")
        return await self._child.wait()

    async def _await_hello(self, hello: asyncio.Future[Any]) -> bool:
        """Whether the new node has reported; a pilot that is stuck is killed."""
        asked = time.monotonic()
        while not hello.done():
            left = max(asked, self._last_sign_at) + self._timing.fork - time.monotonic()
            if self._fork_error is not None:
                # An earlier spare may just have taken the order.
                await asyncio.wait((hello,), timeout=_GRACE)
                if not hello.done():
                    raise self._fork_error
                break
            if self._link_closed.done():
                await asyncio.wait((hello,), timeout=_GRACE)
                break
            if left <= 0:
                # Unless this process was late to read.
                await asyncio.wait((hello,), timeout=_GRACE)
                if not hello.done():
                    self._kill_stuck(f"It did not fork within {self._timing.fork:g} s of being asked.")
                break
            await asyncio.wait(
                (hello, self._link_closed, self._fork_failed),
                timeout=left,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return hello.done()

    def _spawn_process(self) -> int:
        """Start the process; returns the reading end of its output pipe."""
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            link, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(link.close)
            theirs.callback(remote.close)
            output_end, output = os.pipe()
            undo.callback(os.close, output_end)
            theirs.callback(os.close, output)
            command, descriptors = self._build_command(remote.fileno())
            self._child = spawn_child(
                command,
                environment=self._spec.environment,
                descriptors=descriptors,
                stdout=output,
                stderr=output,
            )
            if self._socket is not None:
                self._socket.close_listener()
            undo.pop_all()
        link.setblocking(False)
        self._link = link
        self._loop.add_reader(link, self._read_messages)
        logger.info("pilot %s is starting (pid %d)", self._spec.key, self._child.pid)
        return output_end

    def _build_command(self, link: int) -> tuple[list[str], list[int]]:
        """The command, and the descriptors that it inherits."""
        spec = self._spec
        if not spec.command:
            setup = PilotSetup(spec.preload, link, os.getpid(), spec.spare_warmup)
            return [sys.executable, "-m", "autoscaler.pilot", setup.to_argument()], [link]
        self._socket = NodeSocket()
        listener = self._socket.fileno()
        options = {"preload": spec.preload, "server": os.getpid(), "listener": listener, "link": link}
        return [*spec.command, json.dumps(options)], [link, listener]

    def _read_messages(self) -> None:
        while self._link is not None and not self._link_closed.done():
            try:
                message = self._link.recv(1 << 16)
            except BlockingIOError:
                return
            except ConnectionResetError:  # once, before the rest, if it ended with orders unread
                continue
            if message:
                self._handle_message(json.loads(message))
            else:
                self._loop.remove_reader(self._link)
                self._link_closed.set_result(None)

    def _handle_message(self, message: dict[str, Any]) -> None:
        match message:
            case {"lit": float(seconds)}:
                if self.state is PilotState.STARTING:
                    self.state = PilotState.READY
                self.ready_at, self._seconds = time.monotonic(), seconds
                self._mark_settled()
                logger.info("pilot %s is ready after %.1f s", self._spec.key, seconds)
            case {"spare": int(pid)}:
                self._last_sign_at = time.monotonic()
                if self._fork_error is not None:
                    self._fork_error, self._fork_failed = None, self._loop.create_future()
                # One that has ended already, or cannot be watched, is left out: nobody can claim it.
                with contextlib.suppress(OSError):
                    spare = self._spares[pid] = ChildProcess(pid)
                    # One that became a node may end before `fork_node` claims it.
                    spare.exit.add_done_callback(
                        lambda _: self._loop.call_later(self._timing.fork, self._spares.pop, pid, None)
                    )
            case {"short": int(number)}:
                self._fork_error = OSError(number, f"{os.strerror(number)} (to fork)")
                if not self._fork_failed.done():
                    self._fork_failed.set_result(None)
            case {"failed": str(reason)}:
                self.reason = reason

    def _mark_settled(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    def _kill_stuck(self, reason: str) -> None:
        if self._child is not None:
            self.reason, self._killed = reason, True
            self._child.kill()

    def _mark_failed(self, reason: str) -> None:
        self.state, self.reason = PilotState.FAILED, reason
        logger.error("pilot %s failed: %s", self._spec.key, reason)

    async def _clean_up(self, output: asyncio.Task[None] | None) -> None:
        """End all its processes but the nodes that were forked from it."""
        if self._child is not None and self._link is not None:
            self._child.kill()
            await self._child.wait_group_gone()
            # Spares that still read orders find none. One that has just taken an order is a node.
            self._link.shutdown(socket.SHUT_WR)
            await asyncio.wait((self._link_closed,), timeout=self._timing.fork)
            if not self._link_closed.done():
                self._loop.remove_reader(self._link)
                self._link_closed.set_result(None)
                for spare in self._spares.values():
                    spare.kill()
            # One that has taken an order is claimed soon, or else killed when its pipes close.
            while left := [spare.exit for spare in self._spares.values() if not spare.exit.done()]:
                await asyncio.wait(left, timeout=_GRACE)
            self._link.close()
            self._link = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if output is not None:
            output.cancel()
            await asyncio.wait((output,))


class _PilotKeeper:
    """Keeps the pilot of one key running: one that fails is started again, later each time.

    `replaced` is done once `pilot` has a successor.
    """

    task: asyncio.Task[None]

    def __init__(self, spec: PilotSpec, timing: PoolTiming) -> None:
        self.spec = spec
        self._timing = timing
        self.pilot = PilotProcess(spec, timing)
        self.replaced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kills = 0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def restarts_at_once(self) -> bool:
        """Whether its pilot has ended and is started again without a pause: it was not to blame."""
        return self.pilot.killed_from_outside and self._kills < _MOST_KILLS

    async def keep_running(self) -> None:
        """Runs until cancelled, and then until the pilot has ended."""
        failures = 0
        while True:
            try:
                await self.pilot.run()
            except Exception:
                logger.exception("the pilot %s was lost", self.spec.key)
                self.pilot.mark_stopped()
            ready_at = self.pilot.ready_at
            if ready_at is not None and time.monotonic() - ready_at > _STABLE_SECONDS:
                self._kills = failures = 0
            timing = self._timing
            if self.pilot.starved:
                await asyncio.sleep(timing.shortage_retry)
            elif self.restarts_at_once:
                self._kills += 1
            else:
                failures += 1
                await asyncio.sleep(min(timing.first_retry * 2 ** (failures - 1), timing.longest_retry))
            self.pilot = PilotProcess(self.spec, timing)
            self._mark_replaced()
            self.replaced = asyncio.get_running_loop().create_future()

    def _mark_replaced(self) -> None:
        if not self.replaced.done():
            self.replaced.set_result(None)

    def stop(self) -> None:
        self.cancel_stop()
        self._mark_replaced()
        self.pilot.mark_stopped()
        self.task.cancel()

    def cancel_stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PilotManager:
    """All pilots of a pool. `start_task` makes tasks that the pool waits for."""

    def __init__(
        self, policy: PilotPolicy, start_task: StartTask, timing: PoolTiming = DEFAULT_TIMING
    ) -> None:
        self._policy = policy
        self._timing = timing
        self._start_task = start_task
        self._keepers: dict[str, _PilotKeeper] = {}
        # By key: those that `set_wanted_pilots` has set, and how many nodes and others use each.
        self._wanted: frozenset[str] = frozenset()
        self._nodes: Counter[str] = Counter()
        self._holds: Counter[str] = Counter()
        self._closed = not (policy.enabled and linux.AVAILABLE)

    def set_wanted_pilots(self, specs: Collection[PilotSpec]) -> None:
        """Run these pilots from now on, unless the policy starts pilots on demand.

        Others end, but for those that something holds, or has held lately.
        """
        if self._policy.linger_seconds is not None:
            return
        self._wanted = frozenset(spec.key for spec in specs)
        for key in self._keepers.keys() - self._wanted:
            if not self._holds[key] and self._keepers[key].timer is None:
                self._stop_pilot(key)
        for spec in specs:
            self._ensure_running(spec)

    @contextlib.contextmanager
    def hold(self, spec: PilotSpec) -> Iterator[None]:
        """Run a pilot for the length of the block, and for some time after it."""
        self._holds[spec.key] += 1
        self._ensure_running(spec)
        try:
            yield
        finally:
            self._holds[spec.key] -= 1
            self._stop_unused(spec.key)

    def can_fork(self, spec: PilotSpec) -> bool:
        """Whether it can fork now or soon."""
        keeper = self._find_keeper(spec)
        if keeper is None:
            return False
        return keeper.pilot.state in (PilotState.READY, PilotState.STARTING) or keeper.restarts_at_once

    def is_ready(self, spec: PilotSpec) -> bool:
        """Whether it can fork now."""
        keeper = self._find_keeper(spec)
        return keeper is not None and keeper.pilot.state is PilotState.READY

    def _find_keeper(self, spec: PilotSpec) -> _PilotKeeper | None:
        keeper = self._keepers.get(spec.key)
        return None if keeper is None or keeper.spec != spec else keeper

    async def wait_until_settled(self, within: float) -> None:
        """Wait until each is ready or has failed; at most `within` seconds.

        One that is killed meanwhile has not: its successor is waited for.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                for keeper in list(self._keepers.values()):
                    await self._wait_for_pilot(keeper.spec)

    def on_node_start(self, spec: PilotSpec) -> None:
        self._nodes[spec.key] += 1
        self._ensure_running(spec)

    def on_node_gone(self, spec: PilotSpec) -> None:
        self._nodes[spec.key] -= 1
        self._stop_unused(spec.key)

    async def fork_node(
        self, spec: PilotSpec, make_pipes: Callable[[], NodePipes]
    ) -> tuple[ChildProcess, NodePipes] | None:
        """Fork a node, and return it with the pipes it was given; None when it must start cold."""
        pilot = await self._wait_for_pilot(spec)
        if pilot is None:
            return None
        attempt = make_pipes()
        child = None
        try:
            child = await pilot.fork_node(attempt)
        finally:
            if child is None:
                attempt.close()
        return None if child is None else (child, attempt)

    async def wait_for_address(self, spec: PilotSpec) -> str:
        """Where nodes connect to a pilot that is a program of its own; "" when there is none."""
        pilot = await self._wait_for_pilot(spec)
        return "" if pilot is None else pilot.address

    async def _wait_for_pilot(self, spec: PilotSpec) -> PilotProcess | None:
        """The pilot once it is ready; waits for one that starts, but not for long.

        Also for the successor of one that is killed meanwhile: cold starts would import the same beside it.
        """
        keeper = self._find_keeper(spec)
        while keeper is not None:
            pilot = keeper.pilot
            if pilot.state is PilotState.STARTING:
                left = pilot.started_at + self._timing.pilot_start - time.monotonic()
                await asyncio.wait((pilot.settled,), timeout=max(0.0, left))
            if pilot.state is PilotState.READY:
                return pilot
            if not keeper.restarts_at_once:
                return None
            await asyncio.wait((keeper.replaced,), timeout=_REPLACED_WITHIN)
            if keeper.pilot is pilot:  # it is being stopped, or does not end
                return None
        return None

    def list_status(self) -> list[PilotStatus]:
        """The status of all pilots, by key."""
        return [keeper.pilot.status() for _, keeper in sorted(self._keepers.items())]

    async def close(self) -> None:
        """End all pilots, for good."""
        self._closed = True
        keepers = list(self._keepers.values())
        for key in list(self._keepers):
            self._stop_pilot(key)
        await asyncio.gather(*(keeper.task for keeper in keepers), return_exceptions=True)

    def _ensure_running(self, spec: PilotSpec) -> None:
        keeper = self._keepers.get(spec.key)
        if keeper is not None and keeper.spec != spec:
            self._stop_pilot(spec.key)
            keeper = None
        if keeper is None and not self._closed:
            keeper = self._keepers[spec.key] = _PilotKeeper(spec, self._timing)
            keeper.task = self._start_task("pilot", keeper.keep_running(), spec.key)
        if keeper is not None:
            keeper.cancel_stop()

    def _stop_unused(self, key: str) -> None:
        """Have a pilot that nothing needs any more end after a while."""
        keeper = self._keepers.get(key)
        if keeper is None or key in self._wanted or self._nodes[key] or self._holds[key]:
            return
        linger = self._policy.linger_seconds
        seconds = self._timing.pilot_linger if linger is None else linger
        keeper.cancel_stop()
        keeper.timer = asyncio.get_running_loop().call_later(seconds, self._stop_pilot, key)

    def _stop_pilot(self, key: str) -> None:
        self._keepers.pop(key).stop()


async def _finish_despite_cancel(work: Coroutine[Any, Any, None]) -> None:
    """Finish `work` even if cancelled meanwhile; the cancellation is raised after it."""
    task = asyncio.create_task(work, name="cleaning up a pilot")
    cancelled = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
