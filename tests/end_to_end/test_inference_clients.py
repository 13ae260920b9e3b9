"""The clients of other servers that people have, against a real one of ours.

Each is a program of `tests.clients`, run by an environment that `make test` sets up. Every version sleeps
when a client comes, and sleeps again when it has gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.end_to_end import models
from tests.end_to_end.conftest import Files
from tests.server import Server, running_server, until

# The first test waits for TensorFlow twice, and so may others that run beside it.

ROOT = Path(__file__).parents[2]
# `make test` sets it up and says where it is.
CLIENTS = Path(os.environ.get("TESTS_CLIENTS", ROOT / ".venv-clients"))

PROJECT = "clients"
MODELS = ("forest", "booster", "saved", "routine")
ROWS = models.data()[0][:3]


@dataclass(frozen=True)
class Asked:
    """What a client was told of the server, and the answers to what it asked."""

    about: dict[str, Any]
    answers: list[dict[str, Any]]


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory, files: Files, saved_model: Path) -> Iterator[Server]:
    """A server with a model of every kind, each of which falls asleep within a second."""
    state_dir = tmp_path_factory.mktemp("sleeper") / "state"
    versions: dict[str, dict[str, Any]] = {
        "forest": {"deploymentUri": str(files.root / "sklearn")},
        "booster": {"deploymentUri": str(files.root / "xgboost")},
        "saved": {"deploymentUri": str(saved_model)},
        "routine": models.routine(state_dir.parent),
    }
    flags = ("--default-project", PROJECT, "--grpc-port", "0", "--idle-timeout", "1", "--tick", "0.1")
    with running_server(state_dir, *flags) as server:
        for name in MODELS:
            server.create_model(f"projects/{PROJECT}/models/{name}")
        begun = [server.begin_version(full(name), **version) for name, version in versions.items()]
        assert not [operation for name in begun if "error" in (operation := server.wait(name))]
        yield server
        assert server.stop() == 0


def full(model: str) -> str:
    return f"projects/{PROJECT}/models/{model}/versions/v1"


def asleep(server: Server) -> None:
    until(lambda: not server.nodes(), "all versions are asleep")


def ask(
    server: Server, client: str, address: str, asks: list[dict[str, Any]], python: Path | None = None
) -> Asked:
    """Have a client ask, from no node to no node; `python` runs those that do not live in `CLIENTS`."""
    python = python or CLIENTS / "bin" / "python"
    assert python.exists(), (
        f"There are no clients in {CLIENTS}: `make test` sets them up, and TESTS_CLIENTS names another place."
    )
    asleep(server)
    done = subprocess.run(
        [python, "-m", f"tests.clients.{client}"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        input=json.dumps({"url": address, "asks": asks}),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asleep(server)
    return Asked(**json.loads(done.stdout))


def tensor(name: str, datatype: str, data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "data": np.asarray(data).tolist()}


# A model of whatever project may be named in full.
IN_FULL = {"model": f"projects/{PROJECT}/models/routine", "inputs": [tensor("any", "FP64", [4])]}


def everything(**details: Any) -> list[dict[str, Any]]:
    """One request for every kind of model, and of TensorFlow's for each kind of tensor."""
    saved = {"id": "pair", "parameters": {"signature_name": "pair"}}
    return [
        {"model": "forest", "id": "rows", "inputs": [tensor("input-0", "FP64", ROWS)], **details},
        {"model": "booster", "inputs": [tensor("input-0", "FP32", ROWS.astype("f4"))], **details},
        {"model": "saved", "inputs": [tensor("x", "FP32", [[1.5, 2], [3, 4]])], **details},
        {
            "model": "saved",
            "inputs": [tensor("n", "FP32", [1, 3]), tensor("s", "BYTES", ["a", "ö"])],
            **saved,
            **details,
        },
        {"model": "routine", "inputs": [tensor("any", "FP64", [1, 2.5])], **details},
        {"model": "routine", "inputs": [tensor("any", "BYTES", ["done"])], "parameters": {"k": 5}, **details},
    ]


def expected(files: Files) -> list[dict[str, Any]]:
    """The outputs that `everything` is to be answered with."""
    import xgboost as xgb

    booster = files.xgboost.predict(xgb.DMatrix(ROWS.astype("f4").astype("f8")))
    return [
        {"predictions": ["INT64", files.sklearn.predict(ROWS).tolist()]},
        {"predictions": ["FP32", booster.tolist()]},
        {"doubled": ["FP32", [[3, 4], [6, 8]]]},
        {
            "half": ["FP32", [0.5, 1.5]],
            "raw_bytes": ["BYTES", ["a", "ö"]],
            "text": ["BYTES", ["a", "ö"]],
        },
        {"predictions": ["FP64", [2, 5]]},
        {"predictions": ["BYTES", ['{"k":5}']]},
    ]


def outputs(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert not [answer for answer in answers if "error" in answer]
    return [answer["outputs"] for answer in answers]


WRONG = [
    {"model": "nobody", "inputs": [tensor("x", "FP64", ROWS)]},
    {"model": "forest", "inputs": [tensor("x", "FP64", ROWS[0])]},
    {"model": "saved", "inputs": [tensor("x", "FP64", ROWS)]},
    {"model": "booster", "inputs": [tensor("x", "FP64", ROWS)], "outputs": ["score"]},
]
WORDS = [
    "no model projects/clients/models/nobody",
    "takes numbers of shape [-1, 4]; got FP64 of shape [4]. A single row has the shape [1, 4]",
    "takes FP32 of shape [-1, 2]; got FP64 of shape [3, 4]",
    "There is no output score: the model has predictions",
]


def test_triton_over_http(sleeper: Server, files: Files) -> None:
    """Tensors as JSON and as bytes, versions and ids, what the server tells of itself, and its errors."""
    asks = [*everything(binary=True), *everything(binary=False, version="1"), *WRONG]
    asks += [IN_FULL, {**everything()[3], "outputs": ["text"]}]

    asked = ask(sleeper, "triton_http", sleeper.url.removeprefix("http://"), asks)

    told = expected(files)
    answers = asked.answers[: 2 * len(told)]
    assert outputs(answers) == told * 2
    assert answers[0]["id"] == "rows"
    assert {answer["version"] for answer in answers} == {"1"}
    for answer, words in zip(asked.answers[2 * len(told) :], WORDS, strict=False):
        assert words in answer["error"]
    assert outputs(asked.answers[-2:]) == [
        {"predictions": ["FP64", [8]]},
        {"text": ["BYTES", ["a", "ö"]]},
    ]
    about = asked.about
    assert (about["live"], about["ready"], about["nobody"]) == (True, True, False)
    assert about["extensions"][0] == "binary_tensor_data"
    assert all(ready for ready, _ in about["models"].values())
    assert about["models"]["saved"][1]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]


@pytest.mark.parametrize("client", ["triton_http", "triton_grpc"])
def test_what_triton_tells_beside_the_protocol(sleeper: Server, client: str) -> None:
    """Statistics of all instances, whichever node has answered; an index; and nothing is loaded by hand."""
    address = sleeper.grpc if client == "triton_grpc" else sleeper.url.removeprefix("http://")
    rows, wrong = everything()[0], WRONG[1]
    before = ask(sleeper, client, address, [{"told": "forest"}]).answers[0]

    asked = ask(sleeper, client, address, [rows, rows, wrong, {"told": "forest"}])

    told = asked.answers[-1]
    (first,), (last,) = before["statistics"], told["statistics"]
    assert (last["name"], last["version"]) == ("forest", "1")
    assert int(last["inference_count"]) - int(first.get("inference_count", 0)) == 2 * len(ROWS)
    assert int(last["execution_count"]) - int(first.get("execution_count", 0)) == 2
    assert abs(time.time() - int(last["last_inference"]) / 1000) < 60
    counts = [
        [int(told["inference_stats"][kind].get("count", 0)) for kind in ("success", "fail", "compute_infer")]
        for told in (first, last)
    ]
    assert [after - before for before, after in zip(*counts, strict=True)] == [2, 1, 2]
    assert int(last["inference_stats"]["compute_infer"]["ns"]) > 0
    assert sorted(told["all"]) == sorted(MODELS)
    assert {one["name"]: one["state"] for one in told["index"]} == dict.fromkeys(MODELS, "READY")
    assert told["config"]["input"][0]["data_type"] == "TYPE_FP64"
    assert all("not loaded and unloaded by hand" in words for words in told["refused"])


def test_kserve_over_http(sleeper: Server, files: Files) -> None:
    """Of its two protocols the first is TensorFlow Serving's rows."""
    asks = [*everything(binary=True), *everything(binary=False), *WRONG]
    rows = {
        "forest": ROWS.tolist(),
        "booster": ROWS.tolist(),
        "saved": [[1.5, 2], [3, 4]],
        "routine": [1, 2.5],
    }
    asks += [{"model": model, "instances": instances} for model, instances in rows.items()]

    asked = ask(sleeper, "kserve_rest", sleeper.url.removeprefix("http://"), asks)

    told = expected(files)
    assert outputs(asked.answers[: 2 * len(told)]) == told * 2
    assert asked.answers[0]["id"] == "rows"
    for answer, words in zip(asked.answers[2 * len(told) :], WORDS, strict=False):
        assert words in answer["error"]
    forest, booster, saved, routine = (answer["predictions"] for answer in asked.answers[-len(rows) :])
    assert forest == told[0]["predictions"][1]
    assert np.float32(booster).tolist() == told[1]["predictions"][1]
    assert (saved, routine) == ([[3, 4], [6, 8]], [2, 5])
    assert asked.about == {"live": True, "ready": True, "forest": True, "nobody": False}


def test_triton_over_grpc(sleeper: Server, files: Files) -> None:
    """The same over gRPC, where all tensors are bytes."""
    asks = [*everything(version="1"), *WRONG, IN_FULL, {**everything()[3], "outputs": ["text"]}]

    asked = ask(sleeper, "triton_grpc", sleeper.grpc, asks)

    told = expected(files)
    answers = asked.answers[: len(told)]
    assert outputs(answers) == told
    assert answers[0]["id"] == "rows"
    assert {answer["version"] for answer in answers} == {"1"}
    for answer, words in zip(asked.answers[len(told) :], WORDS, strict=False):
        assert words in answer["error"]
    assert outputs(asked.answers[-2:]) == [
        {"predictions": ["FP64", [8]]},
        {"text": ["BYTES", ["a", "ö"]]},
    ]
    about = asked.about
    assert (about["live"], about["ready"]) == (True, True)
    assert all(ready for ready, _ in about["models"].values())
    assert about["models"]["saved"][1]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}]


def test_kserve_over_grpc(sleeper: Server, files: Files) -> None:
    """With tensors as bytes, and in lists."""
    asks = [*everything(binary=True), *everything(binary=False), *WRONG]

    asked = ask(sleeper, "kserve_grpc", sleeper.grpc, asks)

    told = expected(files)
    assert outputs(asked.answers[: 2 * len(told)]) == told * 2
    assert asked.answers[0]["id"] == "rows"
    for answer, words in zip(asked.answers[2 * len(told) :], WORDS, strict=True):
        assert words in answer["error"]
    assert asked.about == {"live": True, "ready": True, "forest": True}


def test_tensorflow_serving_over_grpc(sleeper: Server, files: Files) -> None:
    """All that its stubs can ask of every kind of model."""
    asks = [*everything(), *everything(version="1"), *WRONG[:3]]
    asks.append({**everything()[3], "outputs": ["text"]})

    asked = ask(sleeper, "serving_stubs", sleeper.grpc, asks, Path(sys.executable))

    told = expected(files)
    told[5] = {"predictions": ["BYTES", ["done"]]}  # it has no word for parameters
    answers = asked.answers[: 2 * len(told)]
    assert outputs(answers) == told * 2
    assert {answer["version"] for answer in answers} == {"1"}
    for answer, words in zip(asked.answers[2 * len(told) : -1], WORDS[:3], strict=True):
        assert words in answer["error"]
    assert asked.answers[-1]["outputs"] == {"text": ["BYTES", ["a", "ö"]]}
    assert [asked.about[name]["states"] for name in MODELS] == [[[1, "AVAILABLE"]]] * len(MODELS)
    assert asked.about["saved"]["signatures"] == {
        "classify": ["inputs"],
        "pair": ["n", "s"],
        "regress": ["inputs"],
        "serving_default": ["x"],
    }
    assert asked.about["reload"] == "UNIMPLEMENTED"


@pytest.mark.soak
def test_examples_over_grpc(sleeper: Server) -> None:
    """Classify, Regress and MultiInference of tensorflow-serving-api, and what takes no examples."""
    examples = [{"n": 0.25}, {"n": 1.0}]
    asks: list[dict[str, Any]] = [
        {"model": "saved", "method": method, **details}
        for method in ("Classify", "Regress", "MultiInference")
        for details in ({"examples": examples}, {"examples": [{}, {"n": 1.0}], "context": {"n": 0.25}})
    ]
    asks.append({"model": "saved", "version": "1", "method": "Regress", "examples": examples})
    asks += [
        {"model": "saved", "method": "Classify", "examples": []},
        {"model": "saved", "method": "Regress", "examples": [{"other": 1.0}]},
        {"model": "saved", "version": "9", "method": "MultiInference", "examples": examples},
        {"model": "forest", "method": "Classify", "examples": examples},
    ]

    asked = ask(sleeper, "serving_stubs", sleeper.grpc, asks, Path(sys.executable))

    classes = {"classes": [[["low", 0.75], ["high", 0.25]], [["low", 0.0], ["high", 1.0]]]}
    values = {"values": [0.5, 2.0]}
    told = [one | {"version": "1"} for one in (classes, values, values | classes) for _ in range(2)]
    assert asked.answers[:7] == [*told, values | {"version": "1"}]
    words = [
        "INVALID_ARGUMENT|Input is empty",
        "INVALID_ARGUMENT|n",
        "NOT_FOUND|Specific(saved, 9)",
        "FAILED_PRECONDITION|Only TensorFlow models can classify",
    ]
    for answer, expected_words in zip(asked.answers[7:], words, strict=True):
        assert all(word in answer["error"] for word in expected_words.split("|"))
