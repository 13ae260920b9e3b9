from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from serving.cli.health import storage
from serving.cli.health.result import CheckLevel
from tests.emulator import Emulator, Front

KEY = """{"type": "service_account", "project_id": "p", "client_email": "models@p.iam.gserviceaccount.com",
"token_uri": "https://localhost/token", "private_key": %s}"""


class Metadata(BaseHTTPRequestHandler):
    """As the metadata server of a machine in Google Cloud says who it is."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def nowhere() -> tuple[str, int]:
    """An address where nobody listens."""
    return "127.0.0.1", 9


@pytest.fixture
def metadata() -> Iterator[tuple[str, int]]:
    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield "127.0.0.1", server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """One without an emulator and without anybody's credentials."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)}


def key() -> str:
    import json

    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(65537, 2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KEY % json.dumps(pem.decode())


def test_an_emulator_needs_no_credentials(emulator: Emulator) -> None:
    """It is named."""
    finding = storage.check_credentials({}, True)

    assert finding.level is CheckLevel.OK
    assert emulator.url in finding.message


def test_no_credentials(environment: dict[str, str], nowhere: tuple[str, int]) -> None:
    """They are missed only if a bucket is to be used."""
    assert storage.check_credentials(environment, False, nowhere).level is CheckLevel.OK
    finding = storage.check_credentials(environment, True, nowhere)

    assert finding.level is CheckLevel.FAIL
    assert "GOOGLE_APPLICATION_CREDENTIALS" in finding.advice


def test_a_key_file(environment: dict[str, str], tmp_path: Path, nowhere: tuple[str, int]) -> None:
    """Its account is named; one that cannot be read fails."""
    file = tmp_path / "key.json"
    environment["GOOGLE_APPLICATION_CREDENTIALS"] = str(file)
    missing = storage.check_credentials(environment, False, nowhere)
    file.write_text(key())
    there = storage.check_credentials(environment, True, nowhere)

    assert missing.level is CheckLevel.FAIL
    assert str(file) in missing.message
    assert there.level is CheckLevel.OK
    assert "models@p.iam.gserviceaccount.com" in there.message


def test_a_machine_in_google_cloud(environment: dict[str, str], metadata: tuple[str, int]) -> None:
    """Its metadata server has credentials."""
    finding = storage.check_credentials(environment, True, metadata)

    assert finding.level is CheckLevel.OK
    assert "metadata" in finding.message


def test_a_bucket(emulator: Emulator) -> None:
    """It can be listed; an empty one may be the wrong one."""
    bucket = emulator.bucket()
    assert storage.check_bucket(f"gs://{bucket}").level is CheckLevel.WARN
    emulator.put(f"gs://{bucket}/models/m/model.joblib", b"x")

    assert storage.check_bucket(f"gs://{bucket}/models").level is CheckLevel.OK
    assert storage.check_bucket(f"gs://{bucket}").level is CheckLevel.OK


def test_a_bucket_that_is_missing(emulator: Emulator) -> None:
    """And what is no bucket at all."""
    missing = storage.check_bucket("gs://nobodys-bucket")

    assert missing.level is CheckLevel.FAIL
    assert "nobodys-bucket" in missing.message
    assert storage.check_bucket("/tmp").level is CheckLevel.FAIL


@pytest.mark.parametrize("status", [403, 503])
def test_a_bucket_that_refuses(
    front: Front, emulator: Emulator, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason, within seconds."""
    monkeypatch.setattr(storage, "_PATIENCE", 0.5)
    bucket = emulator.bucket()
    front.fail(status, times=1000)

    assert storage.check_bucket(f"gs://{bucket}").level is CheckLevel.FAIL
    assert storage.check_bucket_writable(f"gs://{bucket}").level is CheckLevel.FAIL


def test_writing(emulator: Emulator) -> None:
    """Nothing stays there."""
    bucket = emulator.bucket()

    assert storage.check_bucket_writable(f"gs://{bucket}/results/").level is CheckLevel.OK
    assert storage.check_bucket(f"gs://{bucket}").level is CheckLevel.WARN  # empty
