"""A crowd of rude clients in a process of its own, on plain sockets and epoll, so that it costs little.

`python -m tests.soak.crowd HOST PORT SECONDS IDLE SLOW COSTLY NAME` prints "there" once all are
connected, and a line of JSON at the end: how many of each kind the server has ended. Who is ended comes back.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import resource
import select
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

# Seconds between two bytes of those that are slow; between two clients that come, do something and vanish.
PACE = 1.0
VANISHING_EVERY = 0.1
KINDS = ("head", "body", "pipeline", "half")
# Those that cost the server more than a connection: large answers that nobody reads, bytes that mean nothing.
COSTLY = ("reader", "garbage")
LARGE = b'{"instances": [' + b"1, " * 50_000 + b"1]}"


@dataclass(eq=False)
class Rude:
    """One client: what it sends when it comes, and what it sends every `PACE` seconds."""

    kind: str
    first: bytes
    then: bytes
    socket: socket.socket = field(init=False)


def rude(kind: str, name: str) -> Rude:
    """A client of a kind."""
    post = f"POST /v1/{name}:predict HTTP/1.1\r\nhost: localhost\r\n"
    whole = b'{"instances": [1]}'
    request = f"{post}content-length: {len(whole)}\r\n\r\n".encode() + whole
    match kind:
        case "head":
            return Rude(kind, post.encode(), b"x")
        case "body":
            return Rude(kind, f"{post}content-length: 100000\r\n\r\n{{".encode(), b" ")
        case "pipeline":
            # Nothing that a node would have to work on: that would be load, and others would wait behind it.
            return Rude(
                kind, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" * 8 + b"nonsense\r\n\r\n", b""
            )
        case "half":
            return Rude(kind, request[:-1], b"")
        case "reader":
            return Rude(kind, f"{post}content-length: {len(LARGE)}\r\n\r\n".encode() + LARGE, b"")
        case "garbage":
            return Rude(kind, os.urandom(random.randrange(1, 4096)), b"")
        case _:
            return Rude(kind, b"", b"")


class Crowd:
    """All of them."""

    def __init__(self, address: tuple[str, int], name: str) -> None:
        self._address = address
        self._name = name
        self._poll = select.epoll()
        self._by_file: dict[int, Rude] = {}
        self._due: list[tuple[float, int, Rude]] = []
        self._number = 0
        self.ended: Counter[str] = Counter()
        self.refused = 0

    def join(self, one: Rude) -> None:
        """Connect, and send the first bytes."""
        try:
            one.socket = socket.create_connection(self._address, timeout=10)
            one.socket.sendall(one.first)
            if one.kind == "half":
                one.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.refused += 1
            self._later(one, 1.0)
            return
        one.socket.setblocking(False)
        self._by_file[one.socket.fileno()] = one
        reads = 0 if one.kind == "reader" else select.EPOLLIN
        self._poll.register(one.socket.fileno(), reads | select.EPOLLRDHUP)
        if one.then:
            self._later(one, PACE)

    def run(self, seconds: float) -> None:
        """Be rude for so long."""
        end, vanishing = time.monotonic() + seconds, time.monotonic()
        while (now := time.monotonic()) < end:
            if now >= vanishing:
                vanishing = now + VANISHING_EVERY
                self._vanish()
            while self._due and self._due[0][0] <= now:
                self._act(heapq.heappop(self._due)[2])
            for file, events in self._poll.poll(0.05, 512):
                self._hear(file, events)

    def close(self) -> None:
        """Everybody leaves."""
        for one in self._by_file.values():
            one.socket.close()

    def _later(self, one: Rude, seconds: float) -> None:
        """Have somebody act in about so many seconds: all in the same moment would be load, not rudeness."""
        self._number += 1
        due = time.monotonic() + seconds * random.uniform(0.5, 1.5)
        heapq.heappush(self._due, (due, self._number, one))

    def _act(self, one: Rude) -> None:
        if one.socket.fileno() < 0 or one.socket.fileno() not in self._by_file:
            self.join(one)
            return
        try:
            one.socket.send(one.then)
        except OSError:
            self._ended(one)
        self._later(one, PACE)

    def _hear(self, file: int, events: int) -> None:
        one = self._by_file.get(file)
        if one is None:
            return
        try:
            if events & select.EPOLLIN and one.socket.recv(65536):
                return
        except OSError:
            pass
        self._ended(one)

    def _ended(self, one: Rude) -> None:
        self.ended[one.kind] += 1
        file = one.socket.fileno()
        if self._by_file.pop(file, None) is not None:
            self._poll.unregister(file)
        one.socket.close()
        if not one.then:  # the others come back when they are due
            self._later(one, 1.0)

    def _vanish(self) -> None:
        """Somebody comes, sends a request or a part of one, and is gone."""
        request = rude("half", self._name).first + b"}"
        part = request[: 9 * (self._number % 20)]
        try:
            with socket.create_connection(self._address, timeout=10) as one:
                one.sendall(part)
        except OSError:
            self.refused += 1
        self._number += 1


def main(host: str, port: int, seconds: float, idle: int, slow: int, costly: int, name: str) -> None:
    """Come, be rude, tell."""
    os.nice(15)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd((host, port), name)
    for _ in range(idle):
        crowd.join(rude("idle", name))
    for number in range(slow):
        crowd.join(rude(KINDS[number % len(KINDS)], name))
    for number in range(costly):
        crowd.join(rude(COSTLY[number % len(COSTLY)], name))
    print("there", flush=True)
    crowd.run(seconds)
    crowd.close()
    told = {"ended": crowd.ended, "refused": crowd.refused, "cpu": round(time.process_time(), 1)}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    host, port, seconds, idle, slow, costly, name = sys.argv[1:]
    main(host, int(port), float(seconds), int(idle), int(slow), int(costly), name)
