"""The costs of designs with several gateway processes, in small experiments without Pilotlight.

    python -m loadtests.bench.beyond

1. Several processes that listen on one port (SO_REUSEPORT): the kernel gives each new connection to one of
   them. How evenly do N connections spread?
2. One process accepts, reads the head of the first request, and hands the connection to another one
   (SCM_RIGHTS), which answers it, and all that follow on it. What does a connection cost the first process,
   and how long does its client wait?
"""

from __future__ import annotations

import argparse
import array
import multiprocessing
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from loadtests.bench.targets.processes import cpu_seconds, pinned_to_core

_HOST = "127.0.0.1"
_BODY = b'{"instances":[[5.1,3.5,1.4,0.2]]}'
_HEAD = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(_BODY)
_ANSWER = b'HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n{"predictions":[0]}'
_MOST = 65536


@dataclass(frozen=True)
class HandOverCosts:
    """A new connection with one request on it, answered by the process that accepted it or by another one."""

    direct_us: float
    """Until it is answered, by the process that accepts; the median in microseconds."""
    handed_us: float
    cpu_us: float
    """CPU time of the process that accepts and hands over, per connection."""


def main() -> None:
    title, _, more = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.beyond",
        description=title,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--trials", type=int, default=50, metavar="N", help="for the spread (default: 50)")
    parser.add_argument(
        "--connections", type=int, default=5000, metavar="N", help="handed over (default: 5000)"
    )
    options = parser.parse_args()
    print(
        "Listening together: share of connections at the busiest process, of the even share; median and worst"
    )
    for processes in (2, 4, 8):
        for connections in (16, 64, 256):
            shares = [measure_imbalance(processes, connections) for _ in range(options.trials)]
            text = f"{median(shares):.2f}, {max(shares):.2f}"
            print(f"  {processes} processes, {connections:3} connections: {text}", flush=True)
    found = measure_hand_over(options.connections)
    print("Handing over: a new connection and one request, answered by")
    print(f"  the process that accepts: {found.direct_us:.0f} us")
    print(f"  another one:              {found.handed_us:.0f} us, {found.cpu_us:.0f} us of CPU for the first")


def measure_imbalance(processes: int, connections: int) -> float:
    """The share of the listener with the most of N new connections, as a multiple of the even share.

    It takes no processes to find out: the kernel chooses between sockets.
    """
    with ExitStack() as stack:
        first = stack.enter_context(_listen_shared(0))
        port = first.getsockname()[1]
        listeners = [first, *(stack.enter_context(_listen_shared(port)) for _ in range(processes - 1))]
        for _ in range(connections):
            stack.enter_context(socket.create_connection((_HOST, port)))
        return max(_accept_pending(one) for one in listeners) * processes / connections


def _listen_shared(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((_HOST, port))
    listener.listen(512)
    listener.setblocking(False)
    return listener


def _accept_pending(listener: socket.socket) -> int:
    count = 0
    while select.select([listener], [], [], 0)[0]:
        listener.accept()[0].close()
        count += 1
    return count


def measure_hand_over(connections: int) -> HandOverCosts:
    """Servers on one core, the client on another; both variants in turns."""
    cores = sorted(os.sched_getaffinity(0))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ExitStack() as stack:
        stack.enter_context(ours)
        stack.enter_context(theirs)
        direct = stack.enter_context(socket.create_server((_HOST, 0), backlog=512))
        handing = stack.enter_context(socket.create_server((_HOST, 0), backlog=512))
        with pinned_to_core(cores[0]):
            for target, arguments in (
                (_answer_all, (direct,)),
                (_answer_handed, (theirs,)),
                (_hand_all, (handing, ours)),
            ):
                process = _start_process(target, *arguments)
                stack.callback(process.join)
                stack.callback(process.kill)
        pid = process.pid or 0
        seconds: dict[str, list[float]] = {"direct": [], "handed": []}
        with pinned_to_core(cores[-1]):
            before = cpu_seconds(pid)
            for _ in range(connections):
                seconds["direct"].append(_time_request(direct))
                seconds["handed"].append(_time_request(handing))
            used = cpu_seconds(pid) - before
    return HandOverCosts(
        median(seconds["direct"]) * 1e6, median(seconds["handed"]) * 1e6, used / connections * 1e6
    )


def _start_process(
    target: Callable[..., None], *arguments: socket.socket
) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _time_request(server: socket.socket) -> float:
    """Seconds from connecting to the answer."""
    start = time.perf_counter()
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(_HEAD + _BODY)
        connection.recv(_MOST)
        return time.perf_counter() - start


def _answer_all(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        connection.recv(_MOST)
        connection.sendall(_ANSWER)
        connection.close()


def _hand_all(server: socket.socket, other: socket.socket) -> None:
    """Accept, read what a gateway routes by, hand over both the connection and what was read of it."""
    while True:
        connection, _ = server.accept()
        received = connection.recv(_MOST)
        path = received.split(b" ", 2)[1]
        if path.endswith(b":predict"):
            rights = array.array("i", [connection.fileno()])
            other.sendmsg([received], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        connection.close()


def _answer_handed(other: socket.socket) -> None:
    while True:
        _, descriptors, _, _ = socket.recv_fds(other, _MOST, 1)
        connection = socket.socket(fileno=descriptors[0])
        connection.sendall(_ANSWER)
        connection.close()


if __name__ == "__main__":
    main()
