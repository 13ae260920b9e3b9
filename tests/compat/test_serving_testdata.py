"""The SavedModels in TensorFlow Serving's repository answer as TensorFlow itself, by three protocols.

Its folder is named by TESTS_TENSORFLOW_SERVING; nothing of it is kept here.
"""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compat.test_tensorflow_serving import alike
from tests.server import Server, running_server

_VARIABLE = "TESTS_TENSORFLOW_SERVING"
_TESTDATA = "tensorflow_serving/servables/tensorflow/testdata"
_MODEL = "projects/local/models/testdata"
_DATATYPES = {"bytes": "BYTES", "float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64"}


def folders() -> list[Path]:
    """Those with a SavedModel. Skips where the repository is not."""
    root = os.environ.get(_VARIABLE)
    if not root:
        pytest.skip(f"{_VARIABLE} names no checkout of tensorflow/serving")
    return sorted(path.parent for path in Path(root, _TESTDATA).glob("*/*/saved_model.pb"))


def answers_of(found: list[Path]) -> dict[Path, Any]:
    """What TensorFlow answers, by folder."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "tests.compat.saved_model_answers", *map(str, found)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {Path(one["folder"]): one["answers"] for one in told}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_models_of_the_repository_answer_as_tensorflow(tmp_path: Path) -> None:
    """Each signature of each, or an error where TensorFlow has one."""
    found = folders()
    wanted = answers_of(found)
    assert wanted.keys() == set(found)
    problems: list[str] = []
    with running_server(tmp_path / "state") as server:
        server.create_model(_MODEL)
        for number, folder in enumerate(found):
            version = f"v{number}"
            operation = server.wait(
                server.begin_version(f"{_MODEL}/versions/{version}", deploymentUri=str(folder)), seconds=300
            )
            name = folder.parent.name
            if "error" in operation:
                problems.append(f"{name}: {operation['error']['message']}")
                continue
            for signature, told in wanted[folder].items():
                problems += [
                    f"{name}, {signature}: {one}" for one in differences(server, version, signature, told)
                ]
    assert problems == []


def differences(server: Server, version: str, signature: str, told: dict[str, Any]) -> list[str]:
    """In what the answers of a signature are others than TensorFlow's."""
    if not told["inputs"]:  # what nobody can ask
        return []
    found = [_columns(server, version, signature, told), _infer(server, version, signature, told)]
    if signature == "serving_default" and len(told["inputs"]) == len(told.get("outputs", ())) == 1:
        found.append(_arrays(server, version, told))
    return [problem for problem in found if problem]


def _columns(server: Server, version: str, signature: str, told: dict[str, Any]) -> str:
    """Over TensorFlow Serving's REST API."""
    inputs = {alias: tensor["values"] for alias, tensor in told["inputs"].items()}
    path = f"/v1/models/testdata/versions/{version}:predict"
    reply = server.call("POST", path, json={"signature_name": signature, "inputs": inputs})
    if "error" in told:
        return "" if reply.status == 400 else f"columns: {reply.status}"
    outputs = {alias: tensor["values"] for alias, tensor in told["outputs"].items()}
    answer = next(iter(outputs.values())) if len(outputs) == 1 else outputs
    return "" if alike(answer, reply.json.get("outputs")) else f"columns: {reply.json}"


def _infer(server: Server, version: str, signature: str, told: dict[str, Any]) -> str:
    """Over the Open Inference Protocol, with texts and numbers as bytes behind the JSON."""
    inputs, contents = [], []
    for alias, tensor in told["inputs"].items():
        content = _content(tensor)
        parameters = {"binary_data_size": len(content)}
        datatype = _DATATYPES[tensor["dtype"]]
        inputs.append(
            {"name": alias, "shape": tensor["shape"], "datatype": datatype, "parameters": parameters}
        )
        contents.append(content)
    head = json.dumps({"inputs": inputs, "parameters": {"signature_name": signature}}).encode()
    response = server.http.post(
        f"{server.url}/v2/models/testdata/versions/{version}/infer",
        content=b"".join([head, *contents]),
        headers={"inference-header-content-length": str(len(head))},
    )
    if "error" in told:
        return "" if response.status_code == 400 else f"infer: {response.status_code}"
    outputs = {one["name"]: (one["shape"], one["data"]) for one in response.json().get("outputs", ())}
    wanted = {
        alias: (tensor["shape"], np.ravel(tensor["values"]).tolist())
        for alias, tensor in told["outputs"].items()
    }
    return "" if outputs == wanted else f"infer: {response.text[:200]}"


def _content(tensor: dict[str, Any]) -> bytes:
    if tensor["dtype"] != "bytes":
        return np.array(tensor["values"], tensor["dtype"]).tobytes()
    texts = [base64.b64decode(one["b64"]) for one in np.ravel(np.array(tensor["values"], object)).tolist()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _arrays(server: Server, version: str, told: dict[str, Any]) -> str:
    """As an array in and out, on AI Platform's route."""
    ((_, given),) = told["inputs"].items()
    ((_, wanted),) = told["outputs"].items()
    file = io.BytesIO()
    np.save(file, np.array(given["values"], given["dtype"]))
    kind = "application/x-npy"
    response = server.http.post(
        f"{server.url}/v1/{_MODEL}/versions/{version}:predict",
        content=file.getvalue(),
        headers={"content-type": kind, "accept": kind},
    )
    if response.status_code != 200:
        return f"npy: {response.text[:200]}"
    answer = np.load(io.BytesIO(response.content))
    right = answer.dtype == wanted["dtype"] and np.array_equal(
        answer, np.array(wanted["values"], wanted["dtype"])
    )
    return "" if right else f"npy: {answer}"
