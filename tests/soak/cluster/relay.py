"""What stands between a server and its database, and may stop passing anything on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

_CHUNK = 1 << 16


class Relay:
    """Passes connections on. While it is cut nothing comes through, and nobody is told: what is sent waits.

    `connect` makes a connection to what the relay stands before.
    """

    def __init__(self, listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self._listener = listener
        self._connect = connect
        self._is_open = threading.Event()
        self._is_open.set()
        self._sockets: set[socket.socket] = {listener}
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @contextmanager
    def cut(self) -> Iterator[None]:
        self._is_open.clear()
        try:
            yield
        finally:
            self._is_open.set()

    def close(self) -> None:
        self._is_open.set()
        for one in tuple(self._sockets):
            _end(one)
        for thread in self._threads:  # the first may still add others
            thread.join()

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _pass(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            self._is_open.wait()
            with self._connect() as server:
                self._sockets |= {client, server}
                answering = threading.Thread(target=self._copy, args=(server, client))
                answering.start()
                self._copy(client, server)
                answering.join()
                self._sockets -= {client, server}

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self._is_open.wait()
                target.sendall(data)
        _end(source)
        _end(target)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def relay_database(address: str, folder: Path) -> tuple[Relay, str]:
    """A relay before a database that is reached through a unix socket, and its address through the relay."""
    folder.mkdir()
    url = sa.make_url(address)
    place = url.query["host"]
    assert isinstance(place, str)
    (name,) = (path.name for path in Path(place).glob(".s.PGSQL.*[0-9]"))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / name))
    listener.listen()

    def connect() -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{place}/{name}")
        except OSError:
            server.close()
            raise
        return server

    through = url.update_query_dict({"host": str(folder)})
    return Relay(listener, connect), through.render_as_string(hide_password=False)
