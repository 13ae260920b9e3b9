"""`pilotlight demo`: deploys a model of every kind and checks its predictions, online and batch.

The server itself trains the scikit-learn model, as a job; the others are trained before it starts.

`pip install pilotlight[all,dev]` brings all parts of it; those that are not installed are left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from urllib.parse import quote

import typer

from serving import config
from serving.cli.console import interrupt_on_sigterm
from serving.errors import Internal
from serving.scratch_folders import scratch_folder

if TYPE_CHECKING:
    import httpx

# Kinds of models that `train_models` has a function for. It is not imported: it loads the frameworks.
KINDS = ("xgboost", "tensorflow", "custom")
JOB_KIND = "scikit-learn"
PROJECT = "demo"
BUCKET = "demo-models"
_TIMEOUT_SECONDS = 180.0
_IDLE_SECONDS = 3
_BATCH_RECORDS = 1000
_JOB_ROWS = 5
# Of the traffic of `--stay`: how long a model has its turn, and the time between two requests.
_TURN_SECONDS = 8.0
_PAUSE_SECONDS = 0.15
_TRAINING_JOB, _BATCH_JOB = "demo_training", "demo_batch"
_COMMAND = "from serving.cli import main; main()"


# Optional modules: the module, the part of the demo that needs it, and the package that has it.
_EXTRAS = (
    ("tensorflow", "the TensorFlow model", "pilotlight[tensorflow]"),
    ("apache_beam", "the batch job", "pilotlight[batch]"),
    ("gcp_storage_emulator", "Cloud Storage, for folders of this machine", "gcp-storage-emulator"),
    ("googleapiclient", "Google's client", "google-api-python-client"),
)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model on disk with rows and the predictions its library gives for them."""

    kind: str
    folder: Path
    instances: list[Any]
    predictions: list[Any]

    @property
    def name(self) -> str:
        return self.kind.replace("-", "_")


def demo(
    *,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Go on with some traffic until Ctrl-C, to be watched in the console."),
    ] = False,
) -> None:
    """Train a model as a job, deploy one of each kind, predict, scale to zero and back, run a batch job.

    Nothing stays behind. Exits with 0 only if every prediction was right.

    Example: pilotlight demo
    """
    with interrupt_on_sigterm():
        _run_demo(stay=stay)


def _run_demo(*, stay: bool) -> None:
    import httpx  # noqa: PLC0415  only this command needs it: start-up time

    started = time.monotonic()
    installed = _find_installed()
    kinds = [kind for kind in KINDS if kind != "tensorflow" or "tensorflow" in installed]
    with scratch_folder("demo") as folder:
        _print_step(f"Training {len(kinds)} small models on data sets that come with scikit-learn")
        trained = _train_models(folder / "trained", kinds)
        with (
            _open_file_store(folder / "files", installed) as bucket,
            _run_server(folder / "state", bucket) as server,
            httpx.Client(base_url=server, timeout=_TIMEOUT_SECONDS) as plain,
        ):
            _print_step(f"Server at {server}, files in {bucket.description}")
            if stay:
                _print_console(server)
            google = _create_google_client(server) if "googleapiclient" in installed else None
            _submit_training(plain, folder, bucket)
            for model in trained:
                _deploy_model(plain, model, _build_version_fields(model, bucket))
                _check_online(plain, google, model)
            trained.insert(0, _wait_for_training(plain, folder))
            _check_online(plain, google, trained[0])
            _wait_for_scale_to_zero(plain)
            for model in trained:
                _check_cold_start(plain, model)
            if "apache_beam" in installed:
                _check_batch(plain, next(model for model in trained if model.kind == "xgboost"), bucket)
            _print_example(server, trained[0])
            if stay:
                _print_step(f"All predictions were right ({time.monotonic() - started:.0f} s)")
                _print_console(server)
                _send_traffic(plain, trained)
                return
    _print_step(
        f"All predictions were right ({time.monotonic() - started:.0f} s). Start your own server with"
    )
    print("\n    pilotlight serve\n\nand go on with the examples in README.md. To watch one in a browser:")
    print("\n    pilotlight demo --stay\n")


# ---- the parts


def _find_installed() -> frozenset[str]:
    """The installed modules of _EXTRAS; prints which are missing."""
    installed = frozenset(module for module, _, _ in _EXTRAS if importlib.util.find_spec(module) is not None)
    for module, part, requirement in _EXTRAS:
        if module not in installed:
            _print_step(f"Without {part}: {module} is not installed (pip install '{requirement}')")
    return installed


def _train_models(folder: Path, kinds: Iterable[str]) -> list[TrainedModel]:
    environment = config.environment_without_settings() | config.FRAMEWORK_ENVIRONMENT
    children = {
        kind: subprocess.Popen(
            [sys.executable, "-m", "serving.cli.demo.train_models", kind, str(folder / kind)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in kinds
    }
    trained = []
    for kind, child in children.items():
        _, errors = child.communicate()
        if child.returncode != 0:
            raise Internal(f"Training the {kind} model failed: {errors.strip().splitlines()[-1:]}")
        trained.append(_read_model(kind, folder / kind))
    return trained


def _read_model(kind: str, folder: Path) -> TrainedModel:
    return TrainedModel(kind, folder, **json.loads((folder / "expected.json").read_text()))


class _FileStore(Protocol):
    """The files of models and of the batch job; `environment` is what the server needs to read them."""

    description: str
    environment: Mapping[str, str]

    def build_uri(self, name: str) -> str:
        """The address of a file or a folder."""

    def put(self, name: str, data: bytes) -> str:
        """Write a file; returns its URI."""

    def get(self, name: str) -> str:
        """Read a file."""


class _EmulatedBucket:
    def __init__(self, url: str) -> None:
        self.description = f"a Cloud Storage emulator at {url}"
        self.environment: Mapping[str, str] = {"STORAGE_EMULATOR_HOST": url}
        self._url = url

    def build_uri(self, name: str) -> str:
        return f"gs://{BUCKET}/{name}"

    def put(self, name: str, data: bytes) -> str:
        import httpx  # noqa: PLC0415

        url = f"{self._url}/upload/storage/v1/b/{BUCKET}/o"
        httpx.post(url, params={"uploadType": "media", "name": name}, content=data).raise_for_status()
        return self.build_uri(name)

    def get(self, name: str) -> str:
        import httpx  # noqa: PLC0415

        url = f"{self._url}/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}"
        return httpx.get(url, params={"alt": "media"}).raise_for_status().text


class _LocalFolder:
    def __init__(self, folder: Path) -> None:
        self.description = str(folder)
        self.environment: Mapping[str, str] = {}
        self._folder = folder

    def build_uri(self, name: str) -> str:
        return str(self._folder / name)

    def put(self, name: str, data: bytes) -> str:
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return self.build_uri(name)

    def get(self, name: str) -> str:
        return (self._folder / name).read_text()


@contextlib.contextmanager
def _open_file_store(folder: Path, installed: frozenset[str]) -> Generator[_FileStore]:
    """An empty bucket of a Cloud Storage emulator, or a folder where none is installed."""
    if "gcp_storage_emulator" not in installed:
        yield _LocalFolder(folder)
        return
    from gcp_storage_emulator.server import create_server  # noqa: PLC0415

    # It logs as an error that a file is asked for which is not there: a job asks whether its folder is free.
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    port = _find_free_port()
    emulator = create_server("127.0.0.1", port, in_memory=True, default_bucket=BUCKET)
    emulator.start()
    try:
        yield _EmulatedBucket(f"http://127.0.0.1:{port}")
    finally:
        emulator.stop()


@contextlib.contextmanager
def _run_server(state: Path, bucket: _FileStore) -> Generator[str]:
    """`pilotlight serve` on a free port; yields its address."""
    log = state.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", _COMMAND, "serve", "--port", "0", "--state-dir", str(state)),
                *("--idle-timeout", str(_IDLE_SECONDS)),
            ],
            env={**config.environment_without_settings(), **bucket.environment},
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
        if process.wait(timeout=_TIMEOUT_SECONDS) != 0:
            raise Internal(f"The server ended with exit code {process.returncode}.")


def _build_version_fields(model: TrainedModel, bucket: _FileStore) -> dict[str, Any]:
    """The fields that name a version's files: some models lie in the bucket, some on disk."""
    if model.kind != "custom":
        return {"deploymentUri": str(model.folder / "model")}
    archive = next(model.folder.glob("*.tar.gz"))
    return {
        "deploymentUri": _upload_folder(model.folder / "model", model.name, bucket),
        "packageUris": [bucket.put(f"packages/{archive.name}", archive.read_bytes())],
        "predictionClass": "iris_routine.IrisPredictor",
    }


def _upload_folder(folder: Path, name: str, bucket: _FileStore) -> str:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            bucket.put(f"{name}/{file.relative_to(folder)}", file.read_bytes())
    return bucket.build_uri(name)


def _create_google_client(server: str) -> Any:
    from google.auth.credentials import AnonymousCredentials  # noqa: PLC0415
    from googleapiclient import discovery  # noqa: PLC0415

    return discovery.build(
        "ml",
        "v1",
        client_options={"api_endpoint": server},
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        static_discovery=True,
    )


def _call_api(plain: httpx.Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """The answer of the API. Raises Internal if it refuses."""
    answer: dict[str, Any] = plain.request(method, f"/v1/{path}", json=body).json()
    if "error" in answer and "done" not in answer:
        raise Internal(f"{method} {path}: {answer['error']['message']}")
    return answer


def _submit_training(plain: httpx.Client, folder: Path, bucket: _FileStore) -> None:
    """Start the job whose model the server deploys by itself; its program comes out of the bucket."""
    from serving.cli.demo import training_job  # noqa: PLC0415  only this command needs it: start-up time

    name, wheel = training_job.build_program(folder / "program")
    model = JOB_KIND.replace("-", "_")
    _call_api(plain, "POST", f"projects/{PROJECT}/models", {"name": model})
    training_input = {
        "region": "us-central1",
        "packageUris": [bucket.put(f"packages/{name}", wheel)],
        "pythonModule": training_job.MODULE,
        "args": ["--rows", str(_JOB_ROWS)],
        "jobDir": str(folder / "job"),
    }
    body = {
        "jobId": _TRAINING_JOB,
        "trainingInput": training_input,
        "trainingOptions": {"deploy": {"model": model, "version": "v1"}},
    }
    _call_api(plain, "POST", f"projects/{PROJECT}/jobs", body)


def _wait_for_training(plain: httpx.Client, folder: Path) -> TrainedModel:
    """What the job has trained, once its version is ready."""
    start = time.monotonic()
    _wait_for_job(plain, _TRAINING_JOB)
    model = _read_model(JOB_KIND, folder / "job")
    name = f"{_format_model_name(model)}/versions/v1"
    while (state := _call_api(plain, "GET", name)["state"]) == "CREATING":
        if time.monotonic() - start > _TIMEOUT_SECONDS:
            raise Internal(f"The version of the training job is {state} after {_TIMEOUT_SECONDS:.0f} s.")
        time.sleep(0.2)
    if state != "READY":
        raise Internal(f"The version of the training job is {state}.")
    _print_step(f"{model.kind}: trained by the job {_TRAINING_JOB}, and deployed from {folder / 'job'}")
    return model


def _wait_for_job(plain: httpx.Client, job_id: str) -> None:
    """Raises Internal if it does not succeed."""
    start = time.monotonic()
    while (job := _call_api(plain, "GET", f"projects/{PROJECT}/jobs/{job_id}"))["state"] != "SUCCEEDED":
        if job["state"] in {"FAILED", "CANCELLED"}:
            raise Internal(f"The job {job_id} is {job['state']}: {job.get('errorMessage')}")
        if time.monotonic() - start > _TIMEOUT_SECONDS:
            raise Internal(f"The job {job_id} took over {_TIMEOUT_SECONDS:.0f} s.")
        time.sleep(0.2)


def _deploy_model(plain: httpx.Client, model: TrainedModel, fields: dict[str, Any]) -> None:
    start = time.monotonic()
    _call_api(plain, "POST", f"projects/{PROJECT}/models", {"name": model.name})
    body = {"name": "v1", "runtimeVersion": "2.11", "pythonVersion": "3.7", **fields}
    operation = _call_api(plain, "POST", f"{_format_model_name(model)}/versions", body)
    while not operation.get("done"):
        if time.monotonic() - start > _TIMEOUT_SECONDS:
            raise Internal(f"Creating the {model.kind} version took over {_TIMEOUT_SECONDS:.0f} s.")
        time.sleep(0.2)
        operation = _call_api(plain, "GET", operation["name"])
    if "error" in operation:
        raise Internal(operation["error"]["message"])
    _print_step(f"{model.kind}: deployed from {fields['deploymentUri']} in {time.monotonic() - start:.1f} s")


def _check_online(plain: httpx.Client, google: Any, model: TrainedModel) -> None:
    """`google` is Google's client, or None."""
    _check_http(plain, model)
    if google is not None:
        _check_google_client(google, model)


def _check_http(plain: httpx.Client, model: TrainedModel) -> None:
    start = time.perf_counter()
    answer = plain.post(f"/v1/{_format_model_name(model)}:predict", json={"instances": model.instances})
    elapsed = time.perf_counter() - start
    _check_predictions(model, answer.json(), f"plain HTTP, {elapsed * 1000:.1f} ms")


def _wait_for_scale_to_zero(plain: httpx.Client) -> None:
    _print_step(
        f"No requests now: after {_IDLE_SECONDS} s idle (300 s by default) a version keeps no process"
    )
    start = time.monotonic()
    while any(version["nodes"] for version in plain.get("/nodes").json()["versions"]):
        if time.monotonic() - start > _TIMEOUT_SECONDS:
            raise Internal(f"The versions did not scale to zero within {_TIMEOUT_SECONDS:.0f} s.")
        time.sleep(0.1)
    _print_step(
        f"All scaled to zero after {time.monotonic() - start:.1f} s; the next request starts each again"
    )


def _check_cold_start(plain: httpx.Client, model: TrainedModel) -> None:
    start = time.perf_counter()
    answer = plain.post(f"/v1/{_format_model_name(model)}:predict", json={"instances": model.instances})
    elapsed = time.perf_counter() - start
    _check_predictions(
        model, answer.json(), f"{model.kind}, cold start and answer in {elapsed * 1000:.0f} ms"
    )


def _check_google_client(google: Any, model: TrainedModel) -> None:
    name = f"{_format_model_name(model)}/versions/v1"
    answer = google.projects().predict(name=name, body={"instances": model.instances}).execute()
    _check_predictions(model, answer, "Google's client")


def _check_batch(plain: httpx.Client, model: TrainedModel, bucket: _FileStore) -> None:
    """A batch job from the bucket to the bucket."""
    rows = [model.instances[place % len(model.instances)] for place in range(_BATCH_RECORDS)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    start = time.monotonic()
    prediction_input = {
        "modelName": _format_model_name(model),
        "dataFormat": "JSON",
        "inputPaths": [bucket.put("batch/input.jsonl", lines.encode())],
        "outputPath": bucket.build_uri("batch/output"),
        "region": "us-central1",
    }
    body = {"jobId": _BATCH_JOB, "predictionInput": prediction_input}
    _call_api(plain, "POST", f"projects/{PROJECT}/jobs", body)
    _wait_for_job(plain, _BATCH_JOB)
    _print_step(f"Batch job over {_BATCH_RECORDS} lines: SUCCEEDED in {time.monotonic() - start:.1f} s")
    name = "batch/output/prediction.results-00000-of-00001"
    found = bucket.get(name).splitlines()
    results = [json.loads(line) for line in found]
    wanted = [model.predictions[place % len(model.predictions)] for place in range(_BATCH_RECORDS)]
    if not _is_equal(results, wanted):
        raise Internal(f"The batch job: expected {wanted[:5]} and so on, got {results[:5]}")
    print(f"     {bucket.build_uri(name)} begins with")
    for line in found[:3]:
        print(f"       {line}")


def _check_predictions(model: TrainedModel, answer: dict[str, Any], how: str) -> None:
    if not _is_equal(answer.get("predictions"), model.predictions):
        raise Internal(f"{model.kind} by {how}: expected {model.predictions}, got {answer}")
    shown = json.dumps(answer["predictions"])
    print(f"     {how}: {shown if len(shown) < 70 else shown[:67] + '...'}")


def _is_equal(got: Any, wanted: Any) -> bool:
    """Equal, floats to the last few units of float32: TensorFlow regroups its sums."""
    if isinstance(wanted, float):
        return isinstance(got, float) and math.isclose(got, wanted, rel_tol=1e-6)
    if isinstance(wanted, dict):
        return (
            isinstance(got, dict)
            and got.keys() == wanted.keys()
            and all(_is_equal(got[k], wanted[k]) for k in got)
        )
    if isinstance(wanted, list):
        return isinstance(got, list) and len(got) == len(wanted) and all(map(_is_equal, got, wanted))
    return bool(got == wanted)


def _send_traffic(plain: httpx.Client, trained: Sequence[TrainedModel]) -> None:
    """Requests until Ctrl-C: for the first model all the time, for the others in turn, so that they sleep."""
    import httpx  # noqa: PLC0415

    _print_step("Requests come until you press Ctrl-C: versions wake, and sleep again")
    first, *others = trained
    started = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            turn = int((time.monotonic() - started) / _TURN_SECONDS)
            for model in (first, others[turn % len(others)]) if others else (first,):
                path = f"/v1/{_format_model_name(model)}:predict"
                # One that the stopping server cuts off is no fault of the demo.
                with contextlib.suppress(httpx.HTTPError):
                    plain.post(path, json={"instances": model.instances})
            time.sleep(_PAUSE_SECONDS)
    _print_step("Stopping")


def _print_console(server: str) -> None:
    _print_step(f"Watch it: {server}/console/?project={PROJECT}")


def _print_example(server: str, model: TrainedModel) -> None:
    body = json.dumps({"instances": model.instances[:1]})
    _print_step("Each of these was one request, such as")
    print(f"\n    curl {server}/v1/{_format_model_name(model)}:predict -d '{body}'\n")


def _format_model_name(model: TrainedModel) -> str:
    return f"projects/{PROJECT}/models/{model.name}"


def _find_free_port() -> int:
    from serving.transport.http_server import listen_tcp  # noqa: PLC0415

    with contextlib.closing(listen_tcp("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _print_step(text: str) -> None:
    print(f"==   {text}", flush=True)
