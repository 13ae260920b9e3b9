"""A node alone, as a process on a socket: `pilotlight node`."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import joblib
import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from tests.bounds import HANG_SECONDS
from tests.end_to_end.models import ROUTINE, archive, data
from tests.server import Server, running_node, until

PREDICT = "/v1/projects/p/models/m:predict"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier in model.joblib."""
    folder = tmp_path_factory.mktemp("node") / "model"
    folder.mkdir()
    joblib.dump(LogisticRegression().fit(*data()), folder / "model.joblib")
    return folder


@pytest.fixture(scope="module")
def node(model_dir: Path) -> Iterator[Server]:
    """A node with the classifier."""
    with running_node(model_dir) as server:
        yield server


@pytest.fixture(scope="module")
def routine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A custom routine that does what its instances say, in the old error form; a test ends it."""
    folder = tmp_path_factory.mktemp("routine")
    (folder / "model").mkdir()
    (folder / "model" / "factor.txt").write_text("2")
    package = folder / "routine-0.1.tar.gz"
    package.write_bytes(archive("routine", {"routine": ROUTINE}))
    flags = ("--package-uris", str(package), "--prediction-class", "routine.Routine", "--legacy-model-errors")
    with running_node(folder / "model", *flags) as server:
        yield server


@pytest.mark.parametrize(
    "path",
    [
        PREDICT,
        "/v1/models/any/versions/v9:predict",
        "/v1/projects/p/models/m:predict",
        "/v1/projects/p/models/m/versions/v:predict",
    ],
)
def test_a_node_answers_to_any_name(node: Server, path: str) -> None:
    """It has one version, whatever it is called."""
    rows, _ = data()
    expected = joblib.load(node.state_dir / "model.joblib").predict(rows[:3]).tolist()

    reply = node.call("POST", path, json={"instances": rows[:3].tolist()})

    assert reply.status == 200
    assert reply.json == {"predictions": expected}


def test_a_client_may_ask_where_the_time_went(node: Server) -> None:
    """X-Pilotlight-Timing: 1; a slot means nothing here, where nobody shares a board with the node."""
    body = {"instances": [[0, 0, 0, 0]]}
    headers = {"X-Pilotlight-Timing": "1", "X-Pilotlight-Slot": "0", "X-Pilotlight-Alone": "1"}

    timed = node.call("POST", PREDICT, json=body, headers=headers)
    plain = node.call("POST", PREDICT, json=body)

    phases = [phase.partition(";dur=") for phase in timed.headers["server-timing"].split(", ")]
    assert [name for name, _, _ in phases] == ["parse", "wait", "infer", "encode"]
    assert all(0 <= float(milliseconds) < 1000 for _, _, milliseconds in phases)
    assert timed.json == plain.json
    assert "server-timing" not in plain.headers


def test_health_tells_live_and_ready(node: Server) -> None:
    """Two questions, two answers; and the shape TensorFlow Serving gives its status."""
    assert node.call("GET", "/healthz").json == {"status": "live"}
    assert node.call("GET", "/readyz").json == {"status": "ready"}
    assert node.call("GET", "/v1/models/m").json["model_version_status"][0]["state"] == "AVAILABLE"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PREDICT, 405),
        ("POST", "/v1/nothing:predict", 404),
        ("GET", "/nothing", 404),
        ("POST", "/stats", 405),
    ],
)
def test_wrong_paths_and_methods_are_told_in_googles_form(
    node: Server, method: str, path: str, status: int
) -> None:
    """Every refusal has the same shape."""
    reply = node.call(method, path)

    assert reply.error["code"] == status
    assert ("allow" in reply.headers) == (status == 405)


TENSOR = {"name": "instances", "datatype": "FP64", "shape": [-1, 4]}
STATUS = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/models/m", {"model_version_status": [{"version": "1", **STATUS}]}),
        ("/v1/models/m/versions/v3", {"model_version_status": [{"version": "3", **STATUS}]}),
        ("/v1/models/m/labels/canary", {"model_version_status": [{"version": "1", **STATUS}]}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
        ("/v2/models/projects/p/models/m/versions/3/ready", {"name": "m", "ready": True}),
    ],
)
def test_a_node_tells_of_itself_in_every_protocol(node: Server, path: str, answer: Any) -> None:
    """Whatever its model and its version are called."""
    reply = node.call("GET", path)

    assert (reply.status, reply.json) == (200, answer)


def test_a_node_tells_what_its_model_takes(node: Server) -> None:
    """From the same schema, as each protocol has it."""
    for path in ("/v2/models/m", "/v2/models/m/versions/v3"):
        told = node.call("GET", path).json
        assert told["inputs"] == [TENSOR]
        assert told["versions"] == ["3" if "v3" in path else "1"]
    for path in (
        "/v1/models/m/metadata",
        "/v1/models/m/versions/1/metadata",
        "/v1/models/m/labels/l/metadata",
    ):
        told = node.call("GET", path).json
        assert told["model_spec"] == {"name": "m", "signature_name": "", "version": "1"}
        assert told["metadata"]["signature_def"]["signature_def"].keys() == {"serving_default"}
    assert node.call("GET", "/v2").json["name"] == "pilotlight"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/m:predict", 400),
        ("POST", "/v1/models/m", 400),
        ("POST", "/v1/models/m/nothing", 400),
        ("POST", "/v1/models", 400),
        ("GET", "/v2/models/m/infer", 405),
        ("POST", "/v2/models/m/ready", 405),
        ("GET", "/v2/nothing", 404),
    ],
)
def test_wrong_paths_and_methods_are_told_in_the_form_of_their_protocol(
    node: Server, method: str, path: str, status: int
) -> None:
    """A text, and no more."""
    reply = node.call(method, path)

    assert reply.status == status
    assert list(reply.json) == ["error"]
    assert path in reply.json["error"]
    assert ("allow" in reply.headers) == (status == 405)


def npy(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("path", [PREDICT, "/v1/projects/p/models/m/versions/v:predict"])
def test_arrays_are_predicted_as_json_is(node: Server, path: str) -> None:
    """And answered as such, if the client wants that; also those that are longer than a piece of a body."""
    rows, _ = data()
    expected = joblib.load(node.state_dir / "model.joblib").predict(rows).tolist()
    url, types = node.url + path, {"content-type": "application/x-npy"}

    plain = node.http.post(url, content=npy(rows), headers=types)
    many = node.http.post(url, content=npy(np.tile(rows, (50, 1))), headers=types)
    array = node.http.post(url, content=npy(rows), headers={**types, "accept": "application/x-npy"})
    mixed = node.http.post(url, json={"instances": rows.tolist()}, headers={"accept": "application/x-npy"})
    tensors = node.http.post(
        url, json={"instances": [[0.0] * 4]}, headers={"accept": "application/octet-stream"}
    )

    assert plain.json() == {"predictions": expected}
    assert plain.headers["content-type"] == "application/json; charset=utf-8"
    assert many.json() == {"predictions": expected * 50}
    for answer in (array, mixed):
        assert answer.headers["content-type"] == "application/x-npy"
        assert np.load(io.BytesIO(answer.content)).tolist() == expected
    end = int(tensors.headers["inference-header-content-length"])
    assert orjson.loads(tensors.content[:end])["model_name"] == "m"


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"content-type": "application/x-npy"}, 400, "does not begin like one"),
        ({"accept": "text/html"}, 406, "application/json, application/x-npy, application/octet-stream"),
        ({"accept": "application/json;q=2"}, 400, "q=2"),
        (
            {"content-type": "application/octet-stream", "inference-header-content-length": "x"},
            400,
            "must be a number of bytes",
        ),
        (
            {"content-type": "application/octet-stream", "inference-header-content-length": "999"},
            400,
            "Inference-Header-Content-Length is 999",
        ),
    ],
)
def test_what_is_wrong_with_a_binary_body_is_told(
    node: Server, headers: dict[str, str], status: int, message: str
) -> None:
    """As JSON, whatever was wanted."""
    reply = node.call("POST", PREDICT, content=b'{"instances": [[0, 0, 0, 0]]}', headers=headers)

    assert reply.status == status
    assert message in reply.error["message"]


def test_concurrent_requests_share_calls_and_get_their_own_answers(node: Server) -> None:
    """Merged or not, each request gets the predictions of its rows."""
    rows, _ = data()
    model = joblib.load(node.state_dir / "model.joblib")
    before = node.call("GET", "/stats").json

    def ask(index: int) -> tuple[list[int], list[int]]:
        some = rows[index % 50 : index % 50 + 1 + index % 3]
        return node.call("POST", PREDICT, json={"instances": some.tolist()}).json[
            "predictions"
        ], model.predict(some).tolist()

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(ask, range(400)))

    after = node.call("GET", "/stats").json
    assert all(got == wanted for got, wanted in answers)
    assert after["requests"] - before["requests"] == 400
    assert after["calls"] - before["calls"] <= 400


def test_old_clients_can_have_the_old_form_of_model_errors(routine: Server) -> None:
    """--legacy-model-errors: status 200 and a string."""
    reply = routine.call("POST", PREDICT, json={"instances": ["raise on purpose"]})

    assert reply.status == 200
    assert reply.json == {
        "error": "Failed to run the provided model: Exception during custom prediction: "
        "RuntimeError: on purpose (Error code: 2)"
    }


def test_work_of_a_client_that_has_gone_is_dropped(routine: Server, tmp_path: Path) -> None:
    """A queued request whose client hangs up is never computed."""
    gate = tmp_path / "gate"
    errors = routine.call("GET", "/stats").json["errors"]
    (before,) = routine.predict("models/m", ["seen"]).json["predictions"]
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(routine.call, "POST", PREDICT, json={"instances": [f"wait {gate}"]})
        until(gate.with_name("gate.reached").exists, "the compute slot is taken")
        body = json.dumps({"instances": ["sleep 0"]}).encode()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(routine.url + PREDICT, content=body, timeout=0.2)
        until(lambda: routine.call("GET", "/stats").json["errors"] == errors + 1, "the node noticed")
        gate.touch()
        first.result()

    assert routine.call("POST", PREDICT, json={"instances": ["seen"]}).json == {"predictions": [before + 2]}


def test_the_deadline_is_kept_while_the_model_computes(routine: Server) -> None:
    """X-Request-Timeout bounds the wait; the node lives on."""
    reply = routine.call(
        "POST", PREDICT, json={"instances": ["sleep 1"]}, headers={"X-Request-Timeout": "0.1"}
    )

    assert reply.error["status"] == "DEADLINE_EXCEEDED"
    assert reply.status == 504
    assert routine.predict("models/m", [21]).json == {"predictions": [42]}


def test_a_request_in_flight_is_finished_before_the_node_ends(routine: Server, tmp_path: Path) -> None:
    """SIGTERM: no new connections, what is under way is answered, exit code 0."""
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(routine.call, "POST", PREDICT, json={"instances": [f"wait {gate}"]})
        until(gate.with_name("gate.reached").exists, "the request is being computed")
        routine.process.send_signal(signal.SIGTERM)
        until(lambda: _refused(routine.url), "new connections are refused")
        gate.touch()

        assert answer.result().json == {"predictions": ["done"]}
    assert routine.process.wait(timeout=HANG_SECONDS) == 0


def test_a_unix_socket_instead_of_a_port(model_dir: Path, tmp_path: Path) -> None:
    """--uds listens on a path."""
    path = tmp_path / "node.sock"
    arguments = ("node", "--model-dir", str(model_dir), "--uds", str(path))
    process = subprocess.Popen(
        [sys.executable, "-c", "from serving.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert str(path) in process.stdout.readline()
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            answer = client.post(f"http://node{PREDICT}", json={"instances": [np.zeros(4).tolist()]})
        assert answer.status_code == 200
    finally:
        process.terminate()
        process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "Say what to serve"),
        (("--model-dir", "nowhere"), "nowhere"),
        (("--model-dir", ".", "--port", "-1"), "--port must be at least 0"),
        (
            ("--model-dir", ".", "--merge-requests", "perhaps"),
            "--merge-requests must be one of auto, on, off",
        ),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(
    flags: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """No traceback: one line on standard error, exit code 1."""
    done = subprocess.run(
        [sys.executable, "-c", "from serving.cli import main; main()", "node", *flags],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def _refused(url: str) -> bool:
    try:
        httpx.get(url + "/healthz", timeout=1)
    except httpx.TransportError:
        return True
    return False
