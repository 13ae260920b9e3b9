"""The pilot, a fork server: a process that has imported what nodes need, and that nodes are forked from.

Started as `python -m autoscaler.pilot JSON`; see `PilotSetup`. It always keeps one *spare*, a fork that waits
for an order: forking a big process takes longer than all the rest of a start, and so it is done before it is
needed. While it waits the spare runs a warm-up; an order ends that. The server writes one message, the order,
for each node to a socket that all spares read: the descriptors of `node_process.NodeDescriptors` and of an
output pipe. A message reaches one spare, which becomes the node; the pilot then forks the next.

On the same socket it sends one JSON object per message: {"lit": seconds} once everything is imported,
{"spare": pid} for each fork, {"short": errno} when the machine is short of what a fork takes (it tries again
soon), {"failed": reason} when it cannot import or must not fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from autoscaler import linux, node_process

# Seconds between two forks: the next would compete with the node that the last has just become. A fork that
# failed is tried again after them.
_FORK_PAUSE = 0.2
_DESCRIPTORS = 6


@dataclass(frozen=True, slots=True)
class PilotSetup:
    """The argument of a pilot: modules to import in that order, its socket, and the pid of the server.

    `rehearsal` is an import string "module:function" or "": a spare iterates over what it returns until an
    order comes.
    """

    preload: tuple[str, ...]
    link: int
    server: int
    rehearsal: str = ""

    def to_argument(self) -> str:
        """The command-line argument that `main` reads."""
        return json.dumps(asdict(self))


def main(argument: str) -> int:
    """Run a pilot until the server closes the socket; returns the exit code."""
    setup = PilotSetup(**json.loads(argument))
    linux.die_with_parent(setup.server)
    linux.raise_oom_score()
    linux.name_process("pilot")
    link = socket.socket(fileno=setup.link)
    link.set_inheritable(False)
    begin = time.perf_counter()
    gc.disable()  # what is imported stays: each look at it would free nothing
    try:
        for module in setup.preload:
            importlib.import_module(module)
    except Exception as error:
        _send_message(link, {"failed": f"{type(error).__name__}: {error}"})
        raise
    gc.collect()
    gc.freeze()
    gc.enable()
    if not _check_single_thread(link):
        return 1
    # The intermediate processes of forks need not be reaped.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _send_message(link, {"lit": time.perf_counter() - begin})
    return _serve_forks(link, setup)


def _serve_forks(link: socket.socket, setup: PilotSetup) -> int:
    """Keep one spare until the server closes the socket."""
    while not _is_closed(link):
        if not _check_single_thread(link):
            return 1
        try:
            _fork_and_await_use(link, setup)
        except OSError as error:  # a new pilot would import everything again
            _send_message(link, {"short": error.errno})
            time.sleep(_FORK_PAUSE)
        _wait_until_readable(link, _FORK_PAUSE)
    return 0


def _fork_and_await_use(link: socket.socket, setup: PilotSetup) -> None:
    """Fork a spare, and return when it has become a node, or has died; raises OSError."""
    unused, in_spare = os.pipe()
    try:
        _fork_spare(link, setup, unused, in_spare)
    except OSError:
        os.close(unused)
        raise
    finally:
        os.close(in_spare)
    os.read(unused, 1)
    os.close(unused)


def _check_single_thread(link: socket.socket) -> bool:
    """Whether there is one thread only: a fork would lose other threads, and keep their locks."""
    threads = linux.thread_names()
    if len(threads) > 1:
        _send_message(
            link, {"failed": f"It has {len(threads)} threads and must not fork: {', '.join(threads)}."}
        )
    return len(threads) == 1


def _wait_until_readable(link: socket.socket, seconds: float) -> bool:
    """Whether data comes within that time. `select` would take no descriptor above 1023."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _is_closed(link: socket.socket) -> bool:
    """Whether the server has closed the socket, and every order has been taken."""
    try:
        return not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _fork_spare(link: socket.socket, setup: PilotSetup, *pipe: int) -> None:
    """Fork by way of a process that ends at once, so that the server becomes the spare's parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    try:
        intermediate = os.getpid()
        if _fork_or_exit(link) == 0:
            _run_spare(link, setup, intermediate, *pipe)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _fork_or_exit(link: socket.socket) -> int:
    """Fork, in the intermediate process, which nobody waits for: it reports its own errors, and exits."""
    try:
        return os.fork()
    except OSError as error:
        _send_message(link, {"short": error.errno})
        time.sleep(_FORK_PAUSE)  # the pilot tries again as soon as this process is gone
        os._exit(1)


def _run_spare(
    link: socket.socket, setup: PilotSetup, intermediate: int, unused: int, in_spare: int
) -> NoReturn:
    """Prepare all that a node needs, wait for an order, and become the node."""
    # In this order: the server must know its pid, or find it in the pilot's group.
    _send_message(link, {"spare": os.getpid()})
    os.setsid()
    node_process.restore_signals()
    while (parent := os.getppid()) != setup.server:
        if parent != intermediate:
            os._exit(1)
        time.sleep(0.0002)
    linux.die_with_parent(setup.server)
    if "numpy.random" in sys.modules:  # `random` has reseeded itself
        sys.modules["numpy.random"].seed()
    os.close(unused)
    _warm_up(link, setup.rehearsal)
    fds = _receive_descriptors(link)
    link.close()
    os.close(in_spare)
    *rest, output = fds
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    handles = node_process.NodeDescriptors(*rest)
    order = node_process.LaunchSpec.read(handles.order)
    os.environ.clear()
    os.environ.update(order.environment)
    node_process.run_node(order, handles)


def _warm_up(link: socket.socket, rehearsal: str) -> None:
    """Run the warm-up step by step, until an order comes or the server is gone.

    An error of it is only logged: the warm-up is optional.
    """
    if not rehearsal:
        return
    module, _, function = rehearsal.partition(":")
    try:
        steps = getattr(importlib.import_module(module), function)()
        while not _wait_until_readable(link, 0) and next(steps, steps) is not steps:
            pass
    except Exception as error:
        print(f"The spare's warm-up failed: {type(error).__name__}: {error}", file=sys.stderr)


def _receive_descriptors(link: socket.socket) -> list[int]:
    """Wait for an order and return its descriptors; exits when there will be none."""
    with contextlib.suppress(ConnectionError):
        _, fds, _, _ = socket.recv_fds(link, 1, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if len(fds) == _DESCRIPTORS:
            return fds
    os._exit(0)


def _send_message(link: socket.socket, message: Mapping[str, Any]) -> None:
    # The server may have ended; this process is then about to end.
    with contextlib.suppress(OSError):
        link.send(json.dumps(message).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
