"""Questions over gRPC, to a whole gateway with access control."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from serving.gateway.state.records import DeploymentInfo, ModelRecord, VersionRecord
from serving.model_schema import ModelSchema, ModelSignature, TensorSpec, pack_schema
from serving.names import ModelName, VersionName
from serving.protocols.protos import load_message_class
from serving.resources import Model, Version, VersionState
from serving.transport.grpc_server.call import GrpcCall
from serving.transport.grpc_server.rpc_methods import (
    INFERENCE_SERVICE,
    MODEL_SERVICE,
    PREDICTION_SERVICE,
    RPC_METHODS,
)
from tests.serving.gateway.access.world import Api, run

SCHEMA = ModelSchema(
    "sklearn",
    {
        "serving_default": ModelSignature(
            (TensorSpec("x", "FP64", (-1, 2)),), (TensorSpec("predictions", "INT64", (-1,)),)
        )
    },
)
ANN, BOB = "user:ann@example.com", "user:bob@example.com"


class Context:
    """What gRPC tells of a call."""

    def __init__(self, *metadata: tuple[str, str]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4711"


def model_of(fields: dict[str, Any], service: str, model: str) -> dict[str, Any]:
    """What a message says, of a model."""
    if not model:
        return fields
    named = {"name": model} if service == INFERENCE_SERVICE else {"model_spec": {"name": model}}
    return {**named, **fields}


async def ask(api: Api, principal: str, method: str, model: str = "", **fields: Any) -> tuple[str, Any]:
    """The code and the message that a question is answered with, or the code and its text."""
    rpc = RPC_METHODS[f"/{method}"]
    body = load_message_class(rpc.request)(**model_of(fields, rpc.service, model)).SerializeToString()
    metadata = [("x-request-id", "mine")]
    if principal:
        metadata.append(("authorization", f"Bearer {await api.token(principal)}"))
    reply = await api.gateway.create_metadata_service()(GrpcCall(rpc, Context(*metadata), body))
    headers = dict(reply.headers)
    assert headers[b"x-request-id"] == b"mine"
    if reply.status == 200:
        return "0", load_message_class(rpc.response).FromString(reply.body)
    return headers[b"grpc-status"].decode(), reply.body.decode()


async def fill(api: Api) -> None:
    """A model with a version that sleeps and one that failed; Ann may look at it."""
    await api.bind("projects/p", ml_viewer=ANN)
    model = ModelName("p", "m")

    def put(draft: Any, _: Any) -> None:
        draft.put(ModelRecord(name=model, model=Model(name=str(model)), default="v3"))
        for one, state in (("v3", VersionState.READY), ("v4", VersionState.FAILED)):
            name = VersionName("p", "m", one)
            version = Version(name=str(name), state=state, error_message="broken" if one == "v4" else "")
            deployed = DeploymentInfo(model_dir="/nowhere", schema=pack_schema(SCHEMA))
            draft.put(VersionRecord(name=name, uid=one, version=version, deployed=deployed))

    await api.gateway._catalog.change(put)


def test_models_are_told_of(tmp_path: Path) -> None:
    """As over HTTP, also by their full names; nothing wakes."""

    async def main(api: Api) -> None:
        await fill(api)
        _, status = await ask(api, ANN, f"{MODEL_SERVICE}/GetModelStatus", "m")
        told = [(one.version, one.status.error_message) for one in status.model_version_status]
        assert told == [(4, "broken"), (3, "")]
        wanted = {"metadata_field": ["signature_def"]}
        full = "projects/p/models/m"
        _, metadata = await ask(api, ANN, f"{PREDICTION_SERVICE}/GetModelMetadata", full, **wanted)
        assert (metadata.model_spec.name, metadata.model_spec.version.value) == (full, 3)
        _, described = await ask(api, ANN, f"{INFERENCE_SERVICE}/ModelMetadata", "m")
        assert (list(described.versions), described.inputs[0].name) == (["3"], "x")
        for version, ready in (("", True), ("3", True), ("v4", False)):
            _, state = await ask(api, ANN, f"{INFERENCE_SERVICE}/ModelReady", "m", version=version)
            assert state.ready is ready
        calls = api.gateway._prediction_stats.api_calls
        assert calls["tensorflow.serving.ModelService.GetModelStatus", 200] == 1
        assert calls["inference.GRPCInferenceService.ModelReady", 200] == 3

    run(tmp_path, main)


def test_the_server_tells_everybody_that_it_lives(tmp_path: Path) -> None:
    """Without a token."""

    async def main(api: Api) -> None:
        code, told = await ask(api, "", f"{INFERENCE_SERVICE}/ServerLive")
        assert (code, told.live) == ("0", True)
        # Frameworks are being imported; nothing tells of their end.
        while (await api.send(ANN, "GET", "/readyz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        code, told = await ask(api, "", f"{INFERENCE_SERVICE}/ServerReady")
        assert (code, told.ready) == ("0", True)
        _, about = await ask(api, "", f"{INFERENCE_SERVICE}/ServerMetadata")
        assert about.name == "pilotlight"

    run(tmp_path, main)


def test_who_may_not_is_not_told(tmp_path: Path) -> None:
    """Neither what is there nor what is wrong with the question; those who may are told both."""

    async def main(api: Api) -> None:
        await fill(api)
        unauthenticated, denied, invalid, missing = "16", "7", "3", "5"
        method = f"{MODEL_SERVICE}/GetModelStatus"
        for model in ("m", "none", "", "a/b/c"):
            assert (await ask(api, "", method, model))[0] == unauthenticated
            assert (await ask(api, BOB, method, model))[0] == denied
        assert (await ask(api, ANN, method, "none"))[0] == missing
        assert (await ask(api, ANN, method, ""))[0] == invalid
        assert (await ask(api, ANN, method, "a/b/c"))[0] == invalid
        code, text = await ask(api, ANN, f"{PREDICTION_SERVICE}/GetModelMetadata", "m")
        assert (code, "metadata_field" in text) == (invalid, True)
        calls = api.gateway._prediction_stats.api_calls
        assert calls["tensorflow.serving.ModelService.GetModelStatus", 403] == 4

    run(tmp_path, main)


def test_a_fault_is_one_of_the_server(tmp_path: Path) -> None:
    """It is logged, and told in no detail."""

    async def main(api: Api) -> None:
        questions = api.gateway.create_metadata_service()
        questions._wrap_endpoint = lambda *_: None  # type: ignore[assignment]
        rpc = RPC_METHODS[f"/{INFERENCE_SERVICE}/ServerLive"]
        reply = await questions(GrpcCall(rpc, Context(), b""))
        assert (reply.status, reply.body) == (500, b"Internal error encountered.")

    run(tmp_path, main)
