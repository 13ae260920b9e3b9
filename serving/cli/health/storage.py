"""Checks of Google Cloud credentials and buckets."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping

from serving.artifacts.storage import FileStore, emulator_host
from serving.artifacts.storage.file_system import parse_storage_uri
from serving.artifacts.storage.gcs import GcsClient, bucket_not_found
from serving.cli.health.result import CheckResult, report_failure, report_ok, report_warning
from serving.errors import ServingError

# Where the credentials of a machine in Google Cloud come from.
_METADATA = ("169.254.169.254", 80)
_METADATA_SECONDS = 0.5
_SECONDS = 30
_PATIENCE = 5.0
# Prints whose credentials Google's library finds, without a network request.
_FIND_CREDENTIALS_CODE = """
import json, warnings
warnings.simplefilter("ignore")
import google.auth, google.auth.exceptions
try:
    found, project = google.auth.default()
    account = getattr(found, "service_account_email", "") or getattr(found, "signer_email", "")
    print(json.dumps({"kind": type(found).__module__.rpartition(".")[2], "account": account or ""}))
except google.auth.exceptions.DefaultCredentialsError as error:
    print(json.dumps({"error": str(error)}))
"""
_ADVICE = (
    "For gs:// set GOOGLE_APPLICATION_CREDENTIALS to a service account's key file, or run "
    "`gcloud auth application-default login` as the server's user."
)


def check_credentials(
    environment: Mapping[str, str], needed: bool, metadata: tuple[str, int] = _METADATA
) -> CheckResult:
    """Whether Google's library finds credentials; it looks for them in a process with `environment`.

    `needed`: a bucket is to be used.
    """
    if host := emulator_host():
        return report_ok("credentials", f"None are needed: STORAGE_EMULATOR_HOST is {host}.")
    found = _find_credentials(environment)
    if "error" not in found:
        of = f" of {found['account']}" if found["account"] else ""
        return report_ok("credentials", f"Google credentials are there ({found['kind']}){of}.")
    if _has_metadata_server(metadata):
        return report_ok("credentials", "Google credentials are those of this machine (metadata server).")
    if environment.get("GOOGLE_APPLICATION_CREDENTIALS") or needed:
        return report_failure(
            "credentials", f"There are no Google credentials that work: {found['error']}", _ADVICE
        )
    return report_ok("credentials", "There are no Google credentials; only gs:// needs them.")


def check_bucket(uri: str) -> CheckResult:
    """Whether the objects of a bucket can be listed."""
    check = "bucket"
    begin = time.perf_counter()
    try:
        name, prefix = parse_storage_uri(uri)
        if not name:
            return report_failure(
                check, f"{uri} is no bucket.", "Write --bucket gs://BUCKET or gs://BUCKET/FOLDER."
            )
        gcs = GcsClient(_PATIENCE)
        with gcs.translate_errors(uri, bucket_not_found(name)):
            found = len(
                list(gcs.google_client.list_blobs(name, prefix=prefix, max_results=1, **gcs.call_options))
            )
    except ServingError as error:
        return report_failure(check, error.message, "The models in it cannot be deployed until this works.")
    took = f"{(time.perf_counter() - begin) * 1000:.0f} ms"
    if not found:
        return report_warning(check, f"{uri} can be listed ({took}) and is empty.", "Is it the right one?")
    return report_ok(check, f"{uri} can be listed ({took}).")


def check_bucket_writable(uri: str) -> CheckResult:
    """Whether an object can be written, read and deleted there."""
    check = "bucket write"
    files = FileStore(retry_seconds=_PATIENCE)
    probe = f"{uri.rstrip('/')}/.pilotlight-doctor-{uuid.uuid4().hex}"
    begin = time.perf_counter()
    try:
        try:
            files.write(probe, b"probe")
            whole = files.read(probe) == b"probe"
        finally:
            files.delete(probe)
    except ServingError as error:
        return report_failure(
            check, error.message, "Results of batch jobs and request logs cannot be written there."
        )
    took = f"{(time.perf_counter() - begin) * 1000:.0f} ms"
    if not whole:
        return report_failure(
            check, f"{probe} did not hold what was written to it.", "Something changes objects there."
        )
    return report_ok(check, f"{uri} can be written ({took}).")


def _find_credentials(environment: Mapping[str, str]) -> Mapping[str, str]:
    # In a process: the library reads the environment, and waits 20 s for a metadata server.
    try:
        done = subprocess.run(
            [sys.executable, "-c", _FIND_CREDENTIALS_CODE],
            env={**environment, "NO_GCE_CHECK": "true"},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        found: Mapping[str, str] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"looking for them took over {_SECONDS} s"}
    except ValueError:
        return {"error": (done.stderr.strip().splitlines() or ["google-auth failed"])[-1]}
    return found


def _has_metadata_server(address: tuple[str, int]) -> bool:
    """Whether a metadata server of Google Cloud is there."""
    connection = http.client.HTTPConnection(*address, timeout=_METADATA_SECONDS)
    try:
        connection.request("GET", "/", headers={"Metadata-Flavor": "Google"})
        return connection.getresponse().getheader("Metadata-Flavor") == "Google"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
