"""Asks with KServe's client over HTTP: protocol v2, or v1 for asks with `instances`."""

from __future__ import annotations

import asyncio
from typing import Any

from httpx import HTTPStatusError
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

from tests.clients.asking import Ask, Call, Told, array, run, shown


def connect(url: str) -> tuple[Told, Call]:
    base = f"http://{url}"
    loop = asyncio.new_event_loop()
    first, second = (InferenceRESTClient(RESTConfig(protocol=protocol)) for protocol in ("v1", "v2"))

    def call(ask: Ask) -> Told:
        if "instances" in ask:
            said = loop.run_until_complete(
                first.infer(base, {"instances": ask["instances"]}, model_name=ask["model"])
            )
            return {"predictions": said["predictions"]}
        request = InferRequest(
            ask["model"],
            [_input(given, ask.get("binary", True)) for given in ask["inputs"]],
            request_id=ask.get("id"),
            parameters=ask.get("parameters"),
            request_outputs=[RequestedOutput(name) for name in ask.get("outputs", ())],
        )
        said = loop.run_until_complete(second.infer(base, request, model_name=ask["model"]))
        outputs = {out.name: shown(out.datatype, out.as_numpy()) for out in said.outputs}
        return {"outputs": outputs, "id": said.id, "version": said.model_version}

    about = {
        "live": loop.run_until_complete(second.is_server_live(base)),
        "ready": loop.run_until_complete(second.is_server_ready(base)),
        "forest": loop.run_until_complete(second.is_model_ready(base, "forest")),
        "nobody": loop.run_until_complete(second.is_model_ready(base, "nobody")),
    }
    return about, call


def _input(given: dict[str, Any], binary: bool) -> InferInput:
    values = array(given)
    tensor = InferInput(given["name"], list(values.shape), given["datatype"])
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


run(connect, HTTPStatusError)
