"""serving.runtimes.container.connection_pool"""

from __future__ import annotations

import http.client
import http.server
import select
import threading
from collections.abc import Iterator

import pytest

from serving.runtimes.container.connection_pool import ConnectionPool
from tests.bounds import HANG_SECONDS


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        if self.path == "/last":
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pool() -> Iterator[ConnectionPool]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        pool = ConnectionPool(lambda: http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30))
        yield pool
        pool.close()
        server.shutdown()
        thread.join()


def get(connection: http.client.HTTPConnection, path: str = "/") -> int:
    connection.request("GET", path)
    with connection.getresponse() as response:
        response.read()
        return response.status


def test_each_user_has_a_connection_of_its_own_and_later_ones_take_those_that_are_free(
    pool: ConnectionPool,
) -> None:
    with pool.lease() as first, pool.lease() as second:
        assert first is not second
        assert (get(first), get(second)) == (200, 200)
        sockets = {first.sock, second.sock}
    with pool.lease() as third, pool.lease() as fourth:
        assert {third.sock, fourth.sock} == sockets
        assert (get(third), get(fourth)) == (200, 200)


def test_a_connection_that_failed_or_was_hung_up_on_is_opened_again(pool: ConnectionPool) -> None:
    with pytest.raises(RuntimeError), pool.lease() as connection:
        get(connection)
        raise RuntimeError
    assert connection.sock is None
    with pool.lease() as again:
        assert again is connection
        assert get(again, "/last") == 200
        assert select.select([again.sock], [], [], HANG_SECONDS)[0]  # the end of it has arrived
    with pool.lease() as once_more:
        assert get(once_more) == 200
