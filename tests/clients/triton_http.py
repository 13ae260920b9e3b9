"""Asks with Triton's client over HTTP."""

from __future__ import annotations

from typing import Any

from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.clients.asking import Ask, Call, Told, array, run, shown


def connect(url: str) -> tuple[Told, Call]:
    client = InferenceServerClient(url)

    def call(ask: Ask) -> Told:
        if "told" in ask:
            return _told(client, ask["told"])
        binary = ask.get("binary", True)
        result = client.infer(
            ask["model"],
            [_input(given, binary) for given in ask["inputs"]],
            model_version=ask.get("version", ""),
            request_id=ask.get("id", ""),
            outputs=[InferRequestedOutput(name, binary_data=binary) for name in ask.get("outputs", ())]
            or None,
            parameters=ask.get("parameters"),
        )
        said = result.get_response()
        outputs = {
            out["name"]: shown(out["datatype"], result.as_numpy(out["name"])) for out in said["outputs"]
        }
        return {"outputs": outputs, "id": said.get("id"), "version": said["model_version"]}

    about = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "extensions": client.get_server_metadata()["extensions"],
        "models": {
            name: [client.is_model_ready(name), client.get_model_metadata(name)]
            for name in ("forest", "booster", "saved", "routine")
        },
        "nobody": client.is_model_ready("nobody"),
    }
    return about, call


def _told(client: InferenceServerClient, model: str) -> Told:
    """What Triton tells beside the protocol, and why nothing is loaded by hand."""
    refused = []
    for change in (client.load_model, client.unload_model):
        try:
            change(model)
        except InferenceServerException as error:
            refused.append(error.message())
    return {
        "statistics": client.get_inference_statistics(model)["model_stats"],
        "all": [one["name"] for one in client.get_inference_statistics()["model_stats"]],
        "index": client.get_model_repository_index(),
        "config": client.get_model_config(model),
        "refused": refused,
    }


def _input(given: dict[str, Any], binary: bool) -> InferInput:
    values = array(given)
    tensor = InferInput(given["name"], values.shape, given["datatype"])
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


run(connect, InferenceServerException)
