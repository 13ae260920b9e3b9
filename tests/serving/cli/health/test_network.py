from __future__ import annotations

import socket

import pytest

from serving.cli.health.network import check_grpc_port, check_port
from serving.cli.health.result import CheckLevel
from serving.config import ServeConfig


def test_a_port_that_is_free() -> None:
    """Any is, when one is to be picked."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number = listener.getsockname()[1]

    assert check_port("127.0.0.1", number, None).level is CheckLevel.OK
    assert check_port("127.0.0.1", 0, None).level is CheckLevel.OK


def test_a_port_that_is_taken() -> None:
    """It may be by the server itself."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]

        taken = check_port("127.0.0.1", number, None)
        assert taken.level is CheckLevel.WARN
        assert str(number) in taken.advice
        assert check_port("127.0.0.1", number, 4711).level is CheckLevel.OK


def test_an_address_that_is_not_ours() -> None:
    """The server could not listen there."""
    finding = check_port("192.0.2.1", 8080, None)

    assert finding.level is CheckLevel.FAIL
    assert "192.0.2.1:8080" in finding.message


def test_the_port_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked as the other, and so is whether gRPC is there."""
    assert "switched off" in check_grpc_port(ServeConfig(), None).message
    settings = ServeConfig(grpc_port="0")
    assert check_grpc_port(settings, None).level is CheckLevel.OK
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = check_grpc_port(ServeConfig(grpc_port=str(listener.getsockname()[1])), None)
    assert (taken.level, taken.check) == (CheckLevel.WARN, "grpc port")
    assert "--grpc-port" in taken.advice

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "grpc_health" else name)
    missing = check_grpc_port(settings, None)
    assert (missing.level, "grpc_health" in missing.message) == (CheckLevel.FAIL, True)
    assert "pilotlight[grpc]" in missing.advice
