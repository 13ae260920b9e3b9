"""Access control and HTTPS as users meet them: a real server, the command, Google's client."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.errors import InvalidArgument
from serving.transport.tls import CertificateFiles
from tests.calls import call, grpc, infer_request
from tests.certificates import write_certificate
from tests.server import Server, running_server, until

ANN = "user:ann@example.com"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate for this machine and its key, and the key of another."""
    folder = tmp_path_factory.mktemp("tls")
    write_certificate(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[Server]:
    """With access control, behind HTTPS."""
    flags = ("--access", "on", "--tls-cert", str(files / "cert.pem"), "--tls-key", str(files / "key.pem"))
    state_dir = tmp_path_factory.mktemp("access") / "state"
    with running_server(state_dir, *flags, "--grpc-port", "0") as server:
        yield server


def admin(server: Server) -> str:
    return (server.state_dir / "admin-token").read_text().strip()


def command(server: Server, files: Path, token: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `pilotlight`."""
    settings = {
        "PILOTLIGHT_SERVER": server.url, "PILOTLIGHT_TOKEN": token, "PILOTLIGHT_PROJECT": "p",
        "PILOTLIGHT_CA_CERT": str(files / "cert.pem"), "PILOTLIGHT_STATE_DIR": str(server.state_dir),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", "from serving.cli import main; main()", *arguments],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_makes_tokens_and_shows_them_to_the_server(server: Server, files: Path) -> None:
    """From the admin's token over one of Ann's, who has no role, to its end."""
    made = command(server, files, admin(server), "models", "create", "m")
    assert made.returncode == 0, made.stderr
    without = command(server, files, "", "models", "list")
    assert (without.returncode, "PILOTLIGHT_TOKEN" in without.stderr) == (1, True)

    token = command(server, files, "", "tokens", "create", ANN, "--expires", "1h").stdout.strip()
    listed = command(server, files, "", "tokens", "list").stdout
    revoked = command(server, files, "", "tokens", "revoke", token.split("_")[1])

    assert token.startswith("plt_")
    assert ANN in listed
    assert token not in listed
    assert revoked.returncode == 0, revoked.stderr
    assert "revoked" in command(server, files, "", "tokens", "list").stdout
    assert command(server, files, "", "tokens", "revoke", "none").returncode == 1


def test_googles_client_handles_policies(server: Server, files: Path) -> None:
    """getIamPolicy, setIamPolicy and testIamPermissions of a model, over HTTPS with a token."""
    import httplib2
    from google.auth.exceptions import RefreshError
    from google.oauth2.credentials import Credentials
    from google_auth_httplib2 import AuthorizedHttp
    from googleapiclient.discovery import build

    def client(token: str) -> Any:
        http = httplib2.Http(ca_certs=str(files / "cert.pem"))
        return build(
            "ml",
            "v1",
            http=AuthorizedHttp(Credentials(token), http=http),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": server.url},
            static_discovery=True,
        )

    token = command(server, files, "", "tokens", "create", ANN).stdout.strip()
    with client(admin(server)) as ml, client(token) as anns:
        models, name = ml.projects().models(), "projects/p/models/shared"
        models.create(parent="projects/p", body={"name": "shared"}).execute()
        policy = models.getIamPolicy(resource=name).execute()
        policy["bindings"].append({"role": "roles/ml.modelUser", "members": [ANN]})
        changed = models.setIamPolicy(resource=name, body={"policy": policy}).execute()
        asked = {"permissions": ["ml.models.get", "ml.models.delete"]}

        def held() -> Any:
            return (
                anns.projects().models().testIamPermissions(resource=name, body=asked).execute(num_retries=0)
            )

        def noticed() -> bool:
            try:
                return bool(held())
            except RefreshError:  # what the client makes of 401
                return False

        until(noticed, "the server knows Ann's token")
        assert held() == {"permissions": ["ml.models.get"]}
        assert changed["etag"] != policy["etag"]
        assert models.getIamPolicy(resource=name).execute() == changed


def test_https_is_that_of_the_certificate(server: Server, files: Path) -> None:
    """Who trusts the authority is answered; who does not is warned."""
    context = ssl.create_default_context(cafile=files / "cert.pem")

    assert server.url.startswith("https://")
    assert httpx.get(f"{server.url}/healthz", verify=context).status_code == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{server.url}/healthz", trust_env=False)


def test_grpc_has_the_same_certificate(server: Server, files: Path) -> None:
    """And the same tokens."""
    credentials = grpc.ssl_channel_credentials((files / "cert.pem").read_bytes())
    method, response = "inference.GRPCInferenceService/ModelInfer", "inference.ModelInferResponse"
    request = infer_request("projects/p/models/none", [1.0])
    with grpc.secure_channel(server.grpc, credentials) as channel:
        assert call(channel, method, response, request).code == "UNAUTHENTICATED"
        token = ("authorization", f"Bearer {admin(server)}")
        assert call(channel, method, response, request, metadata=[token]).code == "NOT_FOUND"
    with grpc.secure_channel(server.grpc, grpc.ssl_channel_credentials()) as channel:
        assert call(channel, method, response, request, metadata=[token]).code == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("chain", "key", "message"),
    [
        ("cert.pem", "", "takes both"),
        ("none.pem", "key.pem", "Cannot read --tls-cert"),
        ("cert.pem", "other.pem", "do not work together"),
        ("key.pem", "key.pem", "do not work together"),
    ],
)
def test_files_that_do_not_work_are_told_at_the_start(
    files: Path, chain: str, key: str, message: str
) -> None:
    """Before anything listens."""
    with pytest.raises(InvalidArgument, match=message):
        CertificateFiles.from_settings(*(str(files / file) if file else "" for file in (chain, key)))
