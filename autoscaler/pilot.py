"""The pilot: a process that has imported what nodes need, has run nothing, and is forked into nodes.

Started as `python -m autoscaler.pilot JSON`; see `Setup`. It always has one *spare* at hand, a fork of it
that waits for an order: forking a big process takes longer than all the rest of a start, and so it is done
before it is needed. While it waits the spare rehearses what nodes do; an order ends that. The server writes
one message for each node to a socket that all spares read: the descriptors of `launch.Handles` and of an
output pipe. A message reaches one spare, which becomes the node; the pilot then forks the next.

On the same socket the server is told, as one JSON object per message: {"lit": seconds} once everything is
imported, {"spare": pid} for each fork, {"short": errno} when the machine is short of what a fork takes (it
tries again soon), {"failed": reason} when it cannot import or must not fork.
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

# How long the next fork may wait, in seconds: it would compete with the node that was just made of the last.
# One that could not be had is tried again after it.
_FORK_PAUSE = 0.2
_DESCRIPTORS = 6


@dataclass(frozen=True, slots=True)
class PilotSetup:
    """What a pilot is told: modules to import in that order, its socket, and the pid of the server.

    `rehearsal` is an import string "module:function" or "": in a spare, what it returns is iterated over
    until there is an order.
    """

    preload: tuple[str, ...]
    link: int
    server: int
    rehearsal: str = ""

    def to_argument(self) -> str:
        """The command-line argument that `main` reads."""
        return json.dumps(asdict(self))


def main(argument: str) -> int:
    """Be a pilot until the server closes the socket; the result is the exit code."""
    setup = PilotSetup(**json.loads(argument))
    linux.die_with_parent(setup.server)
    linux.raise_oom_score()
    linux.name_process("pilot")
    link = socket.socket(fileno=setup.link)
    link.set_inheritable(False)
    begin = time.perf_counter()
    try:
        for module in setup.preload:
            importlib.import_module(module)
    except Exception as error:
        _send_message(link, {"failed": f"{type(error).__name__}: {error}"})
        raise
    gc.collect()
    gc.freeze()
    if not _can_fork(link):
        return 1
    # The go-betweens of forks are of no interest when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _send_message(link, {"lit": time.perf_counter() - begin})
    return _serve_forks(link, setup)


def _serve_forks(link: socket.socket, setup: PilotSetup) -> int:
    """Keep a spare at hand until the server closes the socket."""
    while not _is_closed(link):
        if not _can_fork(link):
            return 1
        try:
            _fork_and_await_use(link, setup)
        except OSError as error:  # to end would be to import everything again
            _send_message(link, {"short": error.errno})
            time.sleep(_FORK_PAUSE)
        _is_readable(link, _FORK_PAUSE)
    return 0


def _fork_and_await_use(link: socket.socket, setup: PilotSetup) -> None:
    """Fork a spare, and return when it has been taken, or is dead; raises OSError."""
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


def _can_fork(link: socket.socket) -> bool:
    """Whether there is one thread: what others do or hold would be lost in a fork."""
    threads = linux.thread_names()
    if len(threads) > 1:
        _send_message(
            link, {"failed": f"It has {len(threads)} threads and must not fork: {', '.join(threads)}."}
        )
    return len(threads) == 1


def _is_readable(link: socket.socket, seconds: float) -> bool:
    """Whether something comes within that time. `select` would take no descriptor above 1023."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _is_closed(link: socket.socket) -> bool:
    """Whether the server has closed the socket, and every order is taken."""
    try:
        return not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _fork_spare(link: socket.socket, setup: PilotSetup, *pipe: int) -> None:
    """Fork by way of a go-between that ends at once, so that the server becomes the spare's parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork():
        return
    try:
        between = os.getpid()
        if _fork_or_exit(link) == 0:
            _run_spare(link, setup, between, *pipe)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _fork_or_exit(link: socket.socket) -> int:
    """Fork, in the go-between, which nobody waits for: it tells itself why it cannot, and ends."""
    try:
        return os.fork()
    except OSError as error:
        _send_message(link, {"short": error.errno})
        time.sleep(_FORK_PAUSE)  # the pilot tries again as soon as this process is gone
        os._exit(1)


def _run_spare(link: socket.socket, setup: PilotSetup, between: int, unused: int, in_spare: int) -> NoReturn:
    """Do all that a node needs but its order, wait for that, and be the node."""
    # In this order: the server must know of it, or find it in the pilot's group.
    _send_message(link, {"spare": os.getpid()})
    os.setsid()
    _restore_signals()
    while (parent := os.getppid()) != setup.server:
        if parent != between:
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
    """Go through a rehearsal step by step, until there is an order or the server is gone.

    One that fails is told to the log, and has cost nothing but the time it would have saved.
    """
    if not rehearsal:
        return
    module, _, function = rehearsal.partition(":")
    try:
        steps = getattr(importlib.import_module(module), function)()
        while not _is_readable(link, 0) and next(steps, steps) is not steps:
            pass
    except Exception as error:
        print(f"The rehearsal failed: {type(error).__name__}: {error}", file=sys.stderr)


def _receive_descriptors(link: socket.socket) -> list[int]:
    """Wait for a message and return its descriptors; ends the process when there will be none."""
    with contextlib.suppress(ConnectionError):
        _, fds, _, _ = socket.recv_fds(link, 1, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if len(fds) == _DESCRIPTORS:
            return fds
    os._exit(0)


def _restore_signals() -> None:
    """As in a process that has just started."""
    usual: dict[int, signal._HANDLER] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGPIPE: signal.SIG_IGN,
        signal.SIGXFSZ: signal.SIG_IGN,
    }
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        wanted = usual.get(number, signal.SIG_DFL)
        if handler is not None and handler != wanted:  # None: a library's own, as it would have been
            signal.signal(number, wanted)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _send_message(link: socket.socket, message: Mapping[str, Any]) -> None:
    # Without a server there is nobody to tell, and this process is about to end.
    with contextlib.suppress(OSError):
        link.send(json.dumps(message).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
