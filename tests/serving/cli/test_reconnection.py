from __future__ import annotations

import pytest

from serving.cli.api_client import ServerUnreachable
from serving.cli.reconnection import Reconnector
from serving.errors import NotFound, ServingError, Unavailable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Server:
    """Answers after so many errors."""

    def __init__(self, *errors: ServingError) -> None:
        self.errors = list(errors)
        self.calls = 0

    def read(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.calls


def make_reconnector(clock: Clock) -> Reconnector:
    return Reconnector(patience=60, clock=clock, sleep=clock.sleep)


def test_a_restart_is_waited_for_and_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(
        ServerUnreachable("No server."), Unavailable("It starts."), ServerUnreachable("No server.")
    )

    assert make_reconnector(Clock()).call(server.read) == 4
    told = capsys.readouterr().err
    assert told.count("waiting for the server") == 1
    assert told.count("answers again") == 1


def test_a_server_that_is_gone_for_good_is_given_up() -> None:
    clock = Clock()
    server = Server(*[ServerUnreachable("No server.")] * 1000)

    with pytest.raises(ServerUnreachable):
        make_reconnector(clock).call(server.read)
    assert 60 <= clock.now < 70
    assert server.calls < 40


def test_what_the_server_refuses_is_not_tried_again() -> None:
    server = Server(NotFound("No job."))

    with pytest.raises(NotFound):
        make_reconnector(Clock()).call(server.read)
    assert server.calls == 1
