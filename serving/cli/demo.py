"""`pilotlight demo`: every kind of model from its directory to right predictions, one by one and in bulk.

It needs what `pip install pilotlight[all,dev]` brings: the Cloud Storage emulator and Google's client.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from serving import config
from serving.errors import Internal
from serving.scratch import scratch_folder

if TYPE_CHECKING:
    import httpx

# Of models; `demo_models` has a function for each, and imports too much to be imported here.
KINDS = ("scikit-learn", "xgboost", "tensorflow", "custom")
PROJECT = "demo"
BUCKET = "demo-models"
_PATIENCE = 180.0
_IDLE_SECONDS = 3
_BATCH_RECORDS = 1000
_COMMAND = "from serving.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Trained:
    """A model on disk with rows and the predictions its library gives for them."""

    kind: str
    folder: Path
    instances: list[Any]
    predictions: list[Any]

    @property
    def name(self) -> str:
        """A model id."""
        return self.kind.replace("-", "_")


def demo() -> None:
    """Deploy a model of each kind, predict, let them sleep and wake, run a batch job; nothing stays behind.

    Exits with 0 only if every prediction was right.

    Example: pilotlight demo
    """
    import httpx  # noqa: PLC0415  only this command needs it: start-up time

    started = time.monotonic()
    with scratch_folder("demo") as folder:
        _say("Training four small models on data sets that come with scikit-learn")
        trained = _train(folder / "trained")
        with _emulator() as emulator, _server(folder / "state", emulator) as server:
            google = _google_client(server)
            _say(f"Server at {server}, Cloud Storage emulator at {emulator}")
            with httpx.Client(base_url=server, timeout=_PATIENCE) as plain:
                for model in trained:
                    _deploy(google, model, _place(model, emulator))
                    _check_http(plain, model)
                    _check_google(google, model)
                _fall_asleep(plain)
                for model in trained:
                    _check_wake_up(plain, model)
            _check_batch(google, trained[KINDS.index("xgboost")], emulator)
            _tell_how(server, trained[0])
    _say(f"All predictions were right ({time.monotonic() - started:.0f} s). Start your own server with")
    print("\n    pilotlight serve\n\nand go on with the examples in README.md.")


# ---- the parts


def _train(folder: Path) -> list[Trained]:
    environment = config.process_environment() | config.FRAMEWORK_ENVIRONMENT
    children = {
        kind: subprocess.Popen(
            [sys.executable, "-m", "serving.cli.demo_models", kind, str(folder / kind)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in KINDS
    }
    trained = []
    for kind, child in children.items():
        _, errors = child.communicate()
        if child.returncode != 0:
            raise Internal(f"Training the {kind} model failed: {errors.strip().splitlines()[-1:]}")
        expected = json.loads((folder / kind / "expected.json").read_text())
        trained.append(Trained(kind, folder / kind, **expected))
    return trained


@contextlib.contextmanager
def _emulator() -> Generator[str]:
    """A Cloud Storage emulator with an empty bucket; its address."""
    from gcp_storage_emulator.server import create_server  # noqa: PLC0415

    port = _free_port()
    emulator = create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        emulator.stop()


@contextlib.contextmanager
def _server(state: Path, emulator: str) -> Generator[str]:
    """`pilotlight serve` on a free port; its address."""
    log = state.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _COMMAND, "serve", "--port", "0", "--state-dir", str(state)),
                *("--idle-timeout", str(_IDLE_SECONDS)),
            ],
            env=config.process_environment() | {"STORAGE_EMULATOR_HOST": emulator},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line.startswith("Listening on "):
            raise Internal(f"The server did not start: {log.read_text()[-2000:]}")
        yield line.removeprefix("Listening on ").strip()
    finally:
        process.send_signal(signal.SIGTERM)
        if process.wait(timeout=_PATIENCE) != 0:
            raise Internal(f"The server ended with exit code {process.returncode}.")


def _place(model: Trained, emulator: str) -> dict[str, Any]:
    """Where a version finds its files: some in the bucket, some on disk."""
    if model.kind == "scikit-learn":
        return {"deploymentUri": _upload(model.folder / "model", model.name, emulator)}
    if model.kind != "custom":
        return {"deploymentUri": str(model.folder / "model")}
    archive = next(model.folder.glob("*.tar.gz"))
    _put(emulator, f"packages/{archive.name}", archive.read_bytes())
    return {
        "deploymentUri": _upload(model.folder / "model", model.name, emulator),
        "packageUris": [f"gs://{BUCKET}/packages/{archive.name}"],
        "predictionClass": "iris_routine.IrisPredictor",
    }


def _upload(folder: Path, name: str, emulator: str) -> str:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            _put(emulator, f"{name}/{file.relative_to(folder)}", file.read_bytes())
    return f"gs://{BUCKET}/{name}"


def _put(emulator: str, name: str, data: bytes) -> None:
    import httpx  # noqa: PLC0415

    url = f"{emulator}/upload/storage/v1/b/{BUCKET}/o"
    httpx.post(url, params={"uploadType": "media", "name": name}, content=data).raise_for_status()


def _get(emulator: str, name: str) -> str:
    import httpx  # noqa: PLC0415

    url = f"{emulator}/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}"
    return httpx.get(url, params={"alt": "media"}).raise_for_status().text


def _google_client(server: str) -> Any:
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
    from googleapiclient import discovery  # noqa: PLC0415

    return discovery.build(
        "ml",
        "v1",
        client_options={"api_endpoint": server},
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        static_discovery=True,
    )


def _deploy(google: Any, model: Trained, place: dict[str, Any]) -> None:
    start = time.monotonic()
    models = google.projects().models()
    models.create(parent=f"projects/{PROJECT}", body={"name": model.name}).execute()
    body = {"name": "v1", "runtimeVersion": "2.11", "pythonVersion": "3.7", **place}
    operation = models.versions().create(parent=_name(model), body=body).execute()
    while not operation.get("done"):
        if time.monotonic() - start > _PATIENCE:
            raise Internal(f"Creating the {model.kind} version took over {_PATIENCE:.0f} s.")
        time.sleep(0.2)
        operation = google.projects().operations().get(name=operation["name"]).execute()
    if "error" in operation:
        raise Internal(operation["error"]["message"])
    _say(f"{model.kind}: deployed from {place['deploymentUri']} in {time.monotonic() - start:.1f} s")


def _check_http(plain: httpx.Client, model: Trained) -> None:
    start = time.perf_counter()
    answer = plain.post(f"/v1/{_name(model)}:predict", json={"instances": model.instances})
    elapsed = time.perf_counter() - start
    _check(model, answer.json(), f"plain HTTP, {elapsed * 1000:.1f} ms")


def _fall_asleep(plain: httpx.Client) -> None:
    """Wait until no version has a process."""
    _say(f"No requests now: after {_IDLE_SECONDS} s idle (300 s by default) a version keeps no process")
    start = time.monotonic()
    while any(version["nodes"] for version in plain.get("/nodes").json()["versions"]):
        if time.monotonic() - start > _PATIENCE:
            raise Internal(f"The versions did not fall asleep within {_PATIENCE:.0f} s.")
        time.sleep(0.1)
    _say(f"All asleep after {time.monotonic() - start:.1f} s; the next request wakes each")


def _check_wake_up(plain: httpx.Client, model: Trained) -> None:
    start = time.perf_counter()
    answer = plain.post(f"/v1/{_name(model)}:predict", json={"instances": model.instances})
    elapsed = time.perf_counter() - start
    _check(model, answer.json(), f"{model.kind}, woken and answered in {elapsed * 1000:.0f} ms")


def _check_google(google: Any, model: Trained) -> None:
    name = f"{_name(model)}/versions/v1"
    answer = google.projects().predict(name=name, body={"instances": model.instances}).execute()
    _check(model, answer, "Google's client")


def _check_batch(google: Any, model: Trained, emulator: str) -> None:
    """A batch job from the bucket to the bucket."""
    rows = [model.instances[place % len(model.instances)] for place in range(_BATCH_RECORDS)]
    _put(emulator, "batch/input.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    start = time.monotonic()
    jobs = google.projects().jobs()
    prediction_input = {
        "modelName": _name(model),
        "dataFormat": "JSON",
        "inputPaths": [f"gs://{BUCKET}/batch/input.jsonl"],
        "outputPath": f"gs://{BUCKET}/batch/output",
        "region": "us-central1",
    }
    body = {"jobId": "demo_batch", "predictionInput": prediction_input}
    job = jobs.create(parent=f"projects/{PROJECT}", body=body).execute()
    while job["state"] not in {"SUCCEEDED", "FAILED", "CANCELLED"}:
        if time.monotonic() - start > _PATIENCE:
            raise Internal(f"The batch job took over {_PATIENCE:.0f} s.")
        time.sleep(0.2)
        job = jobs.get(name=f"projects/{PROJECT}/jobs/demo_batch").execute()
    if job["state"] != "SUCCEEDED":
        raise Internal(f"The batch job is {job['state']}: {job.get('errorMessage')}")
    _say(
        f"Batch job over {_BATCH_RECORDS} lines in the bucket: SUCCEEDED in {time.monotonic() - start:.1f} s"
    )
    name = "prediction.results-00000-of-00001"
    lines = _get(emulator, f"batch/output/{name}").splitlines()
    results = [json.loads(line) for line in lines]
    wanted = [model.predictions[place % len(model.predictions)] for place in range(_BATCH_RECORDS)]
    if not _equal(results, wanted):
        raise Internal(f"The batch job: expected {wanted[:5]} and so on, got {results[:5]}")
    print(f"     gs://{BUCKET}/batch/output/{name} begins with")
    for line in lines[:3]:
        print(f"       {line}")


def _check(model: Trained, answer: dict[str, Any], how: str) -> None:
    if not _equal(answer.get("predictions"), model.predictions):
        raise Internal(f"{model.kind} by {how}: expected {model.predictions}, got {answer}")
    shown = json.dumps(answer["predictions"])
    print(f"     {how}: {shown if len(shown) < 70 else shown[:67] + '...'}")


def _equal(got: Any, wanted: Any) -> bool:
    """Equal, floats to the last few units of float32: TensorFlow regroups its sums."""
    if isinstance(wanted, float):
        return isinstance(got, float) and math.isclose(got, wanted, rel_tol=1e-6)
    if isinstance(wanted, dict):
        return (
            isinstance(got, dict)
            and got.keys() == wanted.keys()
            and all(_equal(got[k], wanted[k]) for k in got)
        )
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(_equal, got, wanted))
    return bool(got == wanted)


def _tell_how(server: str, model: Trained) -> None:
    body = json.dumps({"instances": model.instances[:1]})
    _say("Each of these was one request, such as")
    print(f"\n    curl {server}/v1/{_name(model)}:predict -d '{body}'\n")


def _name(model: Trained) -> str:
    return f"projects/{PROJECT}/models/{model.name}"


def _free_port() -> int:
    from serving.http import listen_tcp  # noqa: PLC0415

    with contextlib.closing(listen_tcp("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _say(text: str) -> None:
    print(f"==   {text}", flush=True)
