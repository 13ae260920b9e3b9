"""Asks with KServe's client over gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc import RpcError
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.infer_type import RequestedOutput

from tests.clients.asking import Ask, Call, Told, array, run, shown


def connect(url: str) -> tuple[Told, Call]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    client = InferenceGRPCClient(url)

    def call(ask: Ask) -> Told:
        request = InferRequest(
            ask["model"],
            [_input(given, ask.get("binary", True)) for given in ask["inputs"]],
            request_id=ask.get("id"),
            model_version=ask.get("version"),
            parameters=ask.get("parameters"),
            request_outputs=[RequestedOutput(name) for name in ask.get("outputs", ())],
        )
        said = loop.run_until_complete(client.infer(request))
        outputs = {out.name: shown(out.datatype, out.as_numpy()) for out in said.outputs}
        return {"outputs": outputs, "id": said.id, "version": said.model_version}

    about = {
        "live": loop.run_until_complete(client.is_server_live()),
        "ready": loop.run_until_complete(client.is_server_ready()),
        "forest": loop.run_until_complete(client.is_model_ready("forest")),
    }
    return about, call


def _input(given: dict[str, Any], binary: bool) -> InferInput:
    values = array(given)
    tensor = InferInput(given["name"], list(values.shape), given["datatype"])
    if binary:
        tensor.set_data_from_numpy(values)
    else:
        tensor.data = values.reshape(-1).tolist()
    return tensor


run(connect, RpcError)
