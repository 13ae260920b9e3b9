"""Each test is run with each kind of application, over TLS where it asks for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.certificates import write_certificate
from tests.serving.transport.http_connection.server import World


@pytest.fixture(autouse=True, params=["application", "handler"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients see no difference between answers of an application and of a handler of predictions."""
    monkeypatch.setattr(World, "by_handler", request.param == "handler", raising=False)


@pytest.fixture(params=["plain", "tls"])
def wire(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is sent over TLS is limited like all else."""
    if request.param == "tls":
        folder = tmp_path_factory.mktemp("tls")
        write_certificate(folder)
        monkeypatch.setattr(World, "certificate", folder)


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client cannot make the server complain."""
    yield
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []
