"""TensorFlow Serving's own cases: the same status and value, but where docs/tensorflow-serving.md says why.

The short form makes the models that most cases ask. The long one makes all, and asks with the stubs of
TensorFlow Serving.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from serving.protocols.protos import load_message_class
from tests.calls import call
from tests.compat import serving_json_cases as json_cases
from tests.compat import serving_models as models
from tests.compat import serving_server_cases as server_cases
from tests.server import Server, running_server

Ask = Callable[[server_cases.Call], tuple[str, Any]]

_MODELS = "projects/local/models"
_SHORT = (models.HALF_PLUS_TWO, models.TENSORS)


def deploy(server: Server, name: str, folder: Path, version: int = server_cases.VERSION) -> dict[str, Any]:
    """A version of a model, with the label; what became of it."""
    return server.wait(
        server.begin_version(
            f"{_MODELS}/{name}/versions/v{version}",
            deploymentUri=str(folder),
            framework="TENSORFLOW",
            labels={server_cases.LABEL: "on"} if version == server_cases.VERSION else {},
        )
    )


def serve(root: Path, names: Sequence[str]) -> Iterator[Server]:
    """A server with these models."""
    models.write(root / "models", names)
    with running_server(root / "state", "--grpc-port", "0") as server:
        for name in names:
            server.create_model(f"{_MODELS}/{name}")
            assert "error" not in deploy(server, name, root / "models" / name), name
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serve(tmp_path_factory.mktemp("serving"), _SHORT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from serve(tmp_path_factory.mktemp("serving"), models.ALL)


# ---- JSON


def test_json_cases(server: Server) -> None:
    """All of json_tensor_test.cc: 77 requests."""
    cases = json_cases.cases()

    assert len(cases) == 77
    assert [problem for case in cases if (problem := json_problem(server, case))] == []


def json_problem(server: Server, case: json_cases.Case) -> str:
    path = f"/v1/models/{models.TENSORS}:{case.verb}"
    response = server.http.post(server.url + path, content=case.body.encode())
    status, answer = response.status_code, json.loads(response.text)
    if case.name.endswith("/classify") and status == 200:
        answer = {
            "results": [[[json_cases.features_of(label), score]] for ((label, score),) in answer["results"]]
        }
    if case.differs:
        return "" if status == case.differs else f"{case.name}: {status} for {case.differs}"
    if status != case.status or not (case.answer is None or alike(case.answer, answer)):
        return f"{case.name}: {status} {response.text[:200]} for {case.status} {case.answer}"
    return ""


def alike(wanted: Any, given: Any) -> bool:
    """Whether values are the same: float32 numbers to their last digit, NaN as itself."""
    match wanted, given:
        case list(), list():
            return len(wanted) == len(given) and all(map(alike, wanted, given))
        case dict(), dict():
            return wanted.keys() == given.keys() and all(alike(wanted[key], given[key]) for key in wanted)
        case bool() | str(), _:
            return bool(wanted == given)
        case int() | float(), int() | float():
            both = math.isnan(wanted) and math.isnan(given)
            return both or math.isclose(wanted, given, rel_tol=1e-7)
    return False


# ---- what is asked over HTTP and gRPC


def test_requests_over_http(server: Server) -> None:
    requests = list(server_cases.requests(models.HALF_PLUS_TWO))

    assert [problem for one in requests if (problem := problem_of(server, one))] == []


def problem_of(server: Server, asked: server_cases.Request) -> str:
    response = server.http.request(asked.method, server.url + asked.path, content=asked.body.encode() or None)
    wanted = asked.differs or asked.status
    right = response.status_code == wanted and (asked.answer is None or alike(asked.answer, response.json()))
    # What is not a path of TensorFlow Serving's is answered in words of our own.
    told = not asked.path.startswith("/v1/models") or response.headers["content-type"] == "application/json"
    return "" if right and told else f"{asked}: {response.status_code} {response.text[:200]}"


def test_calls_over_grpc(server: Server, tmp_path: Path) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        problems = [
            problem
            for one in server_cases.calls(models.HALF_PLUS_TWO)
            if (problem := call_problem(with_own_messages(channel), one))
        ]

    assert problems == []


def with_own_messages(channel: grpc.Channel) -> Ask:
    """Asks with our messages, which need no TensorFlow."""

    def ask(asked: server_cases.Call) -> tuple[str, Any]:
        name = asked.rpc.partition("/")[2]
        kind = _KINDS.get(name, name)
        request = json_format.ParseDict(
            asked.fields, load_message_class(f"tensorflow.serving.{kind}Request")()
        )
        reply = call(
            channel, f"tensorflow.serving.{asked.rpc}", f"tensorflow.serving.{kind}Response", request
        )
        return reply.code, reply.message

    return ask


_KINDS = {"Classify": "Classification", "Regress": "Regression"}


def with_stubs(channel: grpc.Channel) -> Ask:
    """Asks as TensorFlow Serving's clients do, with its own stubs and messages."""

    def ask(asked: server_cases.Call) -> tuple[str, Any]:
        service, _, name = asked.rpc.partition("/")
        module = {"ModelService": "model_service", "PredictionService": "prediction_service"}[service]
        stubs = importlib.import_module(f"tensorflow_serving.apis.{module}_pb2_grpc")
        kind = _KINDS.get(name, name)
        messages = importlib.import_module(f"tensorflow_serving.apis.{_MODULES[name]}_pb2")
        request = json_format.ParseDict(asked.fields, getattr(messages, f"{kind}Request")())
        try:
            return "OK", getattr(getattr(stubs, f"{service}Stub")(channel), name)(request, timeout=60)
        except grpc.RpcError as error:
            return error.code().name, None

    return ask


_MODULES = {
    "GetModelStatus": "get_model_status",
    "GetModelMetadata": "get_model_metadata",
    "Classify": "classification",
    "Regress": "regression",
    "MultiInference": "inference",
    "Predict": "predict",
}


def call_problem(ask: Ask, asked: server_cases.Call) -> str:
    code, answer = ask(asked)
    if code != asked.code:
        return f"{asked.name}: {code}"
    wrong = {
        path: found for path, wanted in asked.told.items() if (found := found_at(answer, path)) != wanted
    }
    return f"{asked.name}: {wrong}" if wrong else ""


def found_at(answer: Any, path: str) -> Any:
    """What is at a path in a message: a value, or the values of a list, or the names of a map."""
    for part in path.split("."):
        answer = (
            answer[int(part)]
            if part.isdigit()
            else answer[part]
            if hasattr(answer, "keys")
            else getattr(answer, part)
        )
    return list(answer) if hasattr(answer, "__len__") and not isinstance(answer, str) else answer


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_all_with_the_stubs_of_tensorflow_serving(whole: Server) -> None:
    """Of TensorFlow 1 and 2, several versions, functions and models of Keras."""
    problems = []
    for model in (models.HALF_PLUS_TWO, models.HALF_PLUS_TWO_TF2):
        problems += [problem_of(whole, one) for one in server_cases.requests(model)]
    with grpc.insecure_channel(whole.grpc) as channel:
        ask = with_stubs(channel)
        for model in (models.HALF_PLUS_TWO, models.HALF_PLUS_TWO_TF2):
            problems += [call_problem(ask, one) for one in server_cases.calls(model)]
        problems += [call_problem(ask, one) for one in server_cases.deployed()]
    assert [problem for problem in problems if problem] == []


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_states_of_several_versions(whole: Server, tmp_path: Path) -> None:
    """get_model_status_impl_test.cc."""
    models.write(tmp_path, (models.HALF_PLUS_TWO,))
    whole.create_model(f"{_MODELS}/two_versions")
    for version in (server_cases.VERSION, server_cases.VERSION + 1):
        assert "error" not in deploy(whole, "two_versions", tmp_path / models.HALF_PLUS_TWO, version)
    with grpc.insecure_channel(whole.grpc) as channel:
        problems = [call_problem(with_stubs(channel), one) for one in server_cases.statuses("two_versions")]

    assert [problem for problem in problems if problem] == []
