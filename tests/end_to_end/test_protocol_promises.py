"""A neighbour's client cannot get around anything: each promise, in each protocol, on a real server.

A protocol is a `Speaker`; `SPEAKERS` has them all.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any, Protocol

import httpx
import numpy as np
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import mint_token
from serving.gateway.audit.log_folder import audit_log_path, list_log_files
from serving.gateway.audit.method_names import to_audit_method
from serving.transport.grpc_server.rpc_methods import RPC_METHODS, RpcMethod
from tests import calls
from tests.calls import grpc
from tests.end_to_end import models
from tests.server import Server, running_server, until
from tests.serving.gateway.collector import Collector, attributes, collecting

MODEL = "projects/guard/models/m"
VERSION = f"{MODEL}/versions/v3"
MOST_BYTES = 1 << 20

# Each instance is a number of seconds to sleep; of a negative one the process dies, and one of 100 and more
# lasts until there is a file of that name beside the server's state.
SLEEPER = dedent(
    """
    import os, pathlib, time

    class Sleeper:
        def predict(self, instances, **kwargs):
            for seconds in instances:
                if seconds < 0:
                    os._exit(1)
                if seconds < 100:
                    time.sleep(seconds)
                    continue
                while not pathlib.Path(os.environ["TESTS_STATE_DIR"]).with_name(f"{seconds:g}").exists():
                    time.sleep(0.01)
            return instances

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    """
)


@dataclass(frozen=True)
class Told:
    """What a client was told: the name of a `google.rpc` code, the error in words, the prediction."""

    code: str
    text: str = ""
    value: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request: the seconds to sleep, who asks, and what else it says; `padding` are more bytes."""

    seconds: float
    token: str
    model: str = "m"
    version: str = ""
    padding: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class Speaker(Protocol):
    """A client of one protocol. `method` is what it calls, as the table of methods has it."""

    method: str

    def path(self, asked: Asked) -> str:
        """Where it asks."""

    def ask(self, server: Server, asked: Asked) -> Told:
        """Ask, and wait for the answer."""

    def leave(self, server: Server, asked: Asked) -> None:
        """Ask, and go away after a tenth of a second."""


# What a status of HTTP says; several codes share 400, of which it is the first that matters here.
CODES = {
    200: "OK",
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}


@functools.cache
def client() -> httpx.Client:
    """One for all."""
    return httpx.Client(timeout=30)


class OverHttp:
    """What the protocols over HTTP have in common."""

    method: str
    content_type = "application/json"

    def path(self, asked: Asked) -> str:
        raise NotImplementedError

    def body(self, asked: Asked) -> bytes:
        raise NotImplementedError

    def value(self, answer: httpx.Response) -> float:
        raise NotImplementedError

    def error(self, answer: httpx.Response) -> str:
        text = answer.json()["error"]
        assert answer.json().keys() == {"error"}
        assert isinstance(text, str)
        return text

    def ask(self, server: Server, asked: Asked) -> Told:
        answer = client().post(
            f"{server.url}{self.path(asked)}",
            content=self.body(asked),
            headers=self._headers(asked),
        )
        code, headers = CODES[answer.status_code], dict(answer.headers)
        if code == "OK":
            return Told(code, value=self.value(answer), headers=headers)
        return Told(code, self.error(answer), headers=headers)

    def leave(self, server: Server, asked: Asked) -> None:
        with pytest.raises(httpx.ReadTimeout):
            client().post(
                f"{server.url}{self.path(asked)}",
                content=self.body(asked),
                headers=self._headers(asked),
                timeout=0.1,
            )

    def _headers(self, asked: Asked) -> dict[str, str]:
        token = {"authorization": f"Bearer {asked.token}"} if asked.token else {}
        return {"content-type": self.content_type, **token, **asked.headers}


class AiPlatform(OverHttp):
    method = "projects.predict"

    def path(self, asked: Asked) -> str:
        version = f"/versions/{asked.version}" if asked.version else ""
        return f"/v1/projects/guard/models/{asked.model}{version}:predict"

    def body(self, asked: Asked) -> bytes:
        return orjson.dumps({"instances": [asked.seconds]}) + b" " * asked.padding

    def value(self, answer: httpx.Response) -> float:
        found: float = answer.json()["predictions"][0]
        return found

    def error(self, answer: httpx.Response) -> str:
        error = answer.json()["error"]
        assert error["status"] == CODES[answer.status_code]
        text: str = error["message"]
        return text


class Npy(AiPlatform):
    """An array as it is, both ways."""

    content_type = "application/x-npy"

    def body(self, asked: Asked) -> bytes:
        file = io.BytesIO()
        np.save(file, np.full(1 + asked.padding // 8, asked.seconds))
        return file.getvalue()

    def value(self, answer: httpx.Response) -> float:
        return float(np.load(io.BytesIO(answer.content))[0])

    def _headers(self, asked: Asked) -> dict[str, str]:
        return {**super()._headers(asked), "accept": self.content_type}


class TensorFlowServing(OverHttp):
    method = "tensorflow.serving.PredictionService.Predict"

    def path(self, asked: Asked) -> str:
        number = asked.version.removeprefix("v")
        return f"/v1/models/{asked.model}{f'/versions/{number}' if number else ''}:predict"

    def body(self, asked: Asked) -> bytes:
        return orjson.dumps({"instances": [asked.seconds]}) + b" " * asked.padding

    def value(self, answer: httpx.Response) -> float:
        found: float = answer.json()["predictions"][0]
        return found


class OpenInference(OverHttp):
    method = "inference.GRPCInferenceService.ModelInfer"

    def path(self, asked: Asked) -> str:
        number = asked.version.removeprefix("v")
        return f"/v2/models/{asked.model}{f'/versions/{number}' if number else ''}/infer"

    def body(self, asked: Asked) -> bytes:
        one = {"name": "x", "datatype": "FP64", "shape": [1], "data": [asked.seconds]}
        return orjson.dumps({"inputs": [one]}) + b" " * asked.padding

    def value(self, answer: httpx.Response) -> float:
        found: float = answer.json()["outputs"][0]["data"][0]
        return found


class BinaryInference(OpenInference):
    """With tensors as bytes behind the JSON, both ways."""

    content_type = "application/octet-stream"

    def body(self, asked: Asked) -> bytes:
        return self._json(asked) + np.full(1 + asked.padding // 8, asked.seconds).tobytes()

    def value(self, answer: httpx.Response) -> float:
        length = int(answer.headers["inference-header-content-length"])
        return float(np.frombuffer(answer.content[length:])[0])

    def _json(self, asked: Asked) -> bytes:
        count = 1 + asked.padding // 8
        one = {
            "name": "x", "datatype": "FP64", "shape": [count], "parameters": {"binary_data_size": count * 8}
        }  # fmt: skip
        return orjson.dumps({"inputs": [one], "parameters": {"binary_data_output": True}})

    def _headers(self, asked: Asked) -> dict[str, str]:
        length = {"inference-header-content-length": str(len(self._json(asked)))}
        return {**super()._headers(asked), **length}


@functools.cache
def channel(address: str) -> grpc.Channel:
    """One for all calls."""
    return grpc.insecure_channel(address)


class OverGrpc:
    """What both protocols over gRPC have in common."""

    method: str
    response: str
    request: Callable[..., Any]

    def value(self, message: Any) -> float:
        raise NotImplementedError

    def path(self, asked: Asked) -> str:
        return "/" + self.method.replace("Service.", "Service/")

    def ask(self, server: Server, asked: Asked) -> Told:
        told = self._call(server, asked)
        return Told(
            told.code, told.text, None if told.message is None else self.value(told.message), told.trailing
        )

    def leave(self, server: Server, asked: Asked) -> None:
        assert self._call(server, asked, seconds=0.1).code == "DEADLINE_EXCEEDED"

    def _call(self, server: Server, asked: Asked, **more: Any) -> calls.Reply:
        token = {"authorization": f"Bearer {asked.token}"} if asked.token else {}
        values = [asked.seconds] * (1 + asked.padding // 8)
        request = type(self).request(asked.model, values, version=asked.version.removeprefix("v"))
        return calls.call(
            channel(server.grpc),
            self.path(asked)[1:],
            self.response,
            request,
            metadata=list({**token, **asked.headers}.items()),
            **more,
        )


class TensorFlowServingGrpc(OverGrpc):
    method = "tensorflow.serving.PredictionService.Predict"
    response = "tensorflow.serving.PredictResponse"
    request = staticmethod(calls.predict_request)

    def value(self, message: Any) -> float:
        return float(message.outputs["predictions"].double_val[0])


class OpenInferenceGrpc(OverGrpc):
    method = "inference.GRPCInferenceService.ModelInfer"
    response = "inference.ModelInferResponse"
    request = staticmethod(calls.infer_request)

    def value(self, message: Any) -> float:
        return float(message.outputs[0].contents.fp64_contents[0])


SPEAKERS: list[Speaker] = [
    AiPlatform(),
    Npy(),
    TensorFlowServing(),
    OpenInference(),
    BinaryInference(),
    TensorFlowServingGrpc(),
    OpenInferenceGrpc(),
]


@dataclass(frozen=True)
class World:
    """A server with the model, its folder, where its traces go, and the tokens of two callers."""

    server: Server
    root: Path
    collector: Collector
    admin: str
    stranger: str

    def asked(self, seconds: float = 0.0, **more: Any) -> Asked:
        """A request of the admin's."""
        return Asked(seconds, self.admin, **more)

    @contextmanager
    def held(self) -> Iterator[float]:
        """An instance that the model computes until the end of the block."""
        number = 100.0 + len(list(self.root.glob("1??")))
        try:
            yield number
        finally:
            (self.root / f"{number:g}").touch()

    def audited(self, request_id: str) -> dict[str, Any]:
        """What the audit log has of a request, once it has."""

        def found() -> dict[str, Any] | None:
            paths = list_log_files(audit_log_path(self.server.state_dir))
            entries = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
            return next((one for one in entries if _id_of(one) == request_id), None)

        return until(found, f"{request_id} is in the audit log")

    def logged(self, folder: Path, **wanted: str) -> list[dict[str, Any]]:
        """The entries of a log below a folder that have these fields."""
        lines = [line for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]
        return [row for row in map(json.loads, lines) if all(row[key] == wanted[key] for key in wanted)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One request of a version at a time, short bodies, and everything is recorded."""
    root = tmp_path_factory.mktemp("guard")
    model = root / "model"
    model.mkdir()
    (model / "any.txt").write_text("x")
    package = models.wheel(root, "sleeper", "0.1", {"sleeper.py": SLEEPER})
    with (
        collecting() as collector,
        running_server(
            root / "state",
            *("--default-project", "guard"),
            *("--access", "on"),
            *("--version-concurrency", "1"),
            *("--max-body-bytes", str(MOST_BYTES)),
            *("--audit-data-access", "predict"),
            *("--otel-endpoint", collector.endpoint),
            *("--otel-sample", "1"),
            *("--grpc-port", "0"),
        ) as server,
    ):
        admin = (server.state_dir / "admin-token").read_text().strip()
        server.http.headers["authorization"] = f"Bearer {admin}"
        stranger, record = mint_token("user:stranger@example.com", time.time())
        tokens = TokenStore(server.state_dir / "state.db")
        tokens.put(record)
        tokens.close()
        server.create_model(MODEL, onlinePredictionLogging=True)
        server.create_version(
            VERSION, deploymentUri=str(model), predictionClass="sleeper.Sleeper", packageUris=[str(package)]
        )
        logging = {"requestLoggingConfig": {"bigqueryTableName": str(root / "log"), "samplingPercentage": 1}}
        mask = {"updateMask": "requestLoggingConfig"}
        assert server.call("PATCH", VERSION, params=mask, json=logging).status == 200
        known = {"authorization": f"Bearer {stranger}"}
        until(lambda: server.call("GET", MODEL, headers=known).status == 403, "the new token is known")
        yield World(server, root, collector, admin, stranger)
        client().close()
        channel(server.grpc).close()
        assert server.stop() == 0


@pytest.fixture(params=SPEAKERS, ids=lambda speaker: type(speaker).__name__)
def speaker(request: pytest.FixtureRequest) -> Speaker:
    found: Speaker = request.param
    return found


def test_what_is_asked_is_answered(world: World, speaker: Speaker) -> None:
    """By the default version, or by the one that is named."""
    assert speaker.ask(world.server, world.asked(0.001)).value == 0.001
    assert speaker.ask(world.server, world.asked(0.002, version="v3")).value == 0.002


def test_access_is_checked_before_anything_else(world: World, speaker: Speaker) -> None:
    """Who has no token, a bad one, or no role: not let in, and told of in the audit log, also of no model."""
    callers = [
        ("", 16, "UNAUTHENTICATED"),
        ("x", 16, "UNAUTHENTICATED"),
        (world.stranger, 7, "PERMISSION_DENIED"),
    ]
    names: dict[str, tuple[int, str]] = {}
    for token, number, code in callers:
        for model, version in (("m", ""), ("m", "v3"), ("none", "")):
            name = f"{type(speaker).__name__}-{token[:1]}-{model}{version}"
            names[name] = number, model
            told = speaker.ask(world.server, Asked(0, token, model, version, headers={"x-request-id": name}))
            assert (told.code, told.headers["x-request-id"]) == (code, name)

    for name, (number, model) in names.items():
        payload = world.audited(name)["protoPayload"]
        assert payload["methodName"] == to_audit_method(speaker.method)
        assert payload["resourceName"].startswith(f"projects/guard/models/{model}")
        assert payload["status"]["code"] == number


def test_every_method_over_grpc_asks_who_calls(world: World) -> None:
    """Before it looks at what is asked; but whoever asks about the server alone is answered."""
    for rpc in RPC_METHODS.values():
        codes = [
            calls.call(
                channel(world.server.grpc),
                rpc.path[1:],
                rpc.response,
                about_the_model(rpc),
                metadata=[("authorization", f"Bearer {token}")] if token else [],
            ).code
            for token in ("", world.stranger)
        ]
        if rpc.name == "HandleReloadConfigRequest":
            assert codes == ["UNIMPLEMENTED"] * 2
        elif rpc.has_model_name or rpc.name == "RepositoryIndex":
            assert codes == ["UNAUTHENTICATED", "PERMISSION_DENIED"], rpc.path
        else:
            assert codes == ["OK"] * 2, rpc.path


def about_the_model(rpc: RpcMethod) -> Any:
    """What is sent to a method: the model's name, and nothing else."""
    kind, spec = calls.load_message_class(rpc.request), {"name": "m"}
    for name, value in {"tasks": [{"model_spec": spec}], "model_spec": spec, "model_name": "m"}.items():
        if name in kind.DESCRIPTOR.fields_by_name:
            return kind(**{name: value})
    return kind(name="m") if "name" in kind.DESCRIPTOR.fields_by_name else kind()


def test_limits_hold(world: World, speaker: Speaker) -> None:
    """One at a time is what the version grants; others are told by which setting, and when to come again."""
    with world.held() as held:
        holding = threading.Thread(target=speaker.ask, args=(world.server, world.asked(held)))
        holding.start()
        until(lambda: sampled(world, "pilotlight_requests_running"), "the place is taken")
        told = speaker.ask(world.server, world.asked())
    holding.join()

    assert told.code == "RESOURCE_EXHAUSTED"
    assert "version_concurrency" in told.text
    assert told.headers["retry-after"] == "1"


def test_a_body_over_the_limit_is_refused(world: World, speaker: Speaker) -> None:
    """In words that name the setting."""
    told = speaker.ask(world.server, world.asked(padding=MOST_BYTES))

    assert told.code in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")  # gRPC has a code of its own for it
    assert "max_body_bytes" in told.text


def test_a_deadline_is_kept(world: World, speaker: Speaker) -> None:
    """Though the node goes on computing; the place is free at once, and the next request is answered."""
    with world.held() as held:
        told = speaker.ask(world.server, world.asked(held, headers={"x-request-timeout": "0.15"}))

        assert told.code == "DEADLINE_EXCEEDED"
    assert speaker.ask(world.server, world.asked(0.001)).value == 0.001


def test_a_client_that_leaves_frees_its_place(world: World, speaker: Speaker) -> None:
    """Before the node is done with what it asked."""
    with world.held() as held:
        speaker.leave(world.server, world.asked(held))
        quick = {"x-request-timeout": "0.05"}
        # It has the place, though the node is busy, if it was asked at all.
        codes = ("DEADLINE_EXCEEDED", "OK")
        until(lambda: speaker.ask(world.server, world.asked(headers=quick)).code in codes, "it is free")

    assert speaker.ask(world.server, world.asked(0.001)).value == 0.001


def test_a_node_that_dies_of_a_request_is_told_of(world: World, speaker: Speaker) -> None:
    """The request is at fault; the next one has a node."""
    told = speaker.ask(world.server, world.asked(-1.0))

    assert told.code == "INTERNAL"
    assert "The node died while it worked on the request" in told.text
    assert speaker.ask(world.server, world.asked(0.001)).value == 0.001


def test_what_is_not_there_is_not_found(world: World, speaker: Speaker) -> None:
    """A model, a version."""
    for asked in (world.asked(model="none"), world.asked(version="v4")):
        assert speaker.ask(world.server, asked).code == "NOT_FOUND"


def test_a_request_is_recorded_everywhere(world: World, speaker: Speaker) -> None:
    """Under one id: in the log of requests, the access log, the audit log, as a trace, and in the metrics."""
    name, before = f"{type(speaker).__name__}-recorded", answered(world)
    asked = world.asked(0.003, headers={"x-request-id": name})
    told = speaker.ask(world.server, asked)
    assert (told.value, told.headers["x-request-id"]) == (0.003, name)

    rows = until(lambda: world.logged(world.root / "log", request_id=name), "it is in the log of requests")
    for text in (rows[0]["raw_data"], rows[0]["raw_prediction"]):
        held = json.loads(text)
        if "b64" in held:
            assert base64.b64decode(held["b64"])
            assert held["contentType"].startswith("application/")
        else:
            assert "0.003" in text

    def accessed() -> dict[str, Any] | None:
        labels = "logging.googleapis.com/labels"
        entries = world.logged(world.server.state_dir / "logs" / "access")
        return next((entry for entry in entries if entry[labels]["request_id"] == name), None)

    access = until(accessed, "it is in the access log")
    assert access["httpRequest"]["requestUrl"] == speaker.path(asked)
    assert (access["model"], access["model_version"], access["status"]) == ("m", "v3", 200)

    payload = world.audited(name)["protoPayload"]
    assert payload["methodName"] == to_audit_method(speaker.method)
    assert payload["resourceName"] == MODEL
    assert payload["authenticationInfo"]["principalSubject"] == "user:admin@localhost"
    assert payload["authorizationInfo"][0]["permission"] == "ml.models.predict"
    assert not payload["status"]

    def traced() -> str | None:
        found = [one for one in world.collector.spans if attributes(one).get("pilotlight.request_id") == name]
        return found[0].name if found else None

    assert until(traced, "it is traced") == speaker.method
    assert answered(world) == before + 1


def _id_of(entry: dict[str, Any]) -> str | None:
    """The request that an entry of the audit log is of."""
    found: str | None = entry.get("labels", {}).get("request_id")
    return found


def answered(world: World) -> float:
    """How many requests the version has answered."""
    return sampled(world, "pilotlight_predictions_total", code="200")


def sampled(world: World, name: str, **labels: str) -> float:
    """What /metrics tells of the version."""
    labels["version"] = "v3"
    text = world.server.http.get(f"{world.server.url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
