"""SavedModels as other people have them, from the deployment to the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.protocols.protos import load_message_class
from tests.chromium import fits, needs_chromium, running_chromium
from tests.end_to_end import saved_models
from tests.end_to_end.jobs import finished, job, results, submit, write_lines
from tests.server import Server

# Of the project that clients of other servers mean.
MODEL = "projects/local/models/saved"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, in a folder each."""
    root = tmp_path_factory.mktemp("saved_models")
    saved_models.write(root)
    return root


@pytest.fixture(scope="module")
def operations(server: Server, folders: Path) -> dict[str, Any]:
    """What became of the deployment of each."""
    server.create_model(MODEL)
    names = [
        server.begin_version(f"{MODEL}/versions/{name}", deploymentUri=str(folders / name))
        for name in (saved_models.KERAS, saved_models.SHARED)
    ]
    return dict(zip((saved_models.KERAS, saved_models.SHARED), map(server.wait, names), strict=True))


def test_keras_3_saved_by_tensorflow(server: Server, folders: Path, operations: dict[str, Any]) -> None:
    asked = json.loads((folders / saved_models.KERAS / "asked.json").read_text())

    answer = server.predict(f"{MODEL}/versions/{saved_models.KERAS}", asked["instances"])

    assert "error" not in operations[saved_models.KERAS]
    found = [next(iter(row.values())) for row in answer.json["predictions"]]
    np.testing.assert_array_equal(np.array(found, np.float32), np.array(asked["answer"], np.float32))


def test_an_only_output_by_machine_type(server: Server, folders: Path, tmp_path: Path) -> None:
    """Online, in what is told of the version, and in batch; with values that AI Platform took for numbers."""
    name = f"{MODEL}/versions/n1"
    server.create_model(MODEL) if server.call("GET", MODEL).status == 404 else None
    server.create_version(name, deploymentUri=str(folders / saved_models.SHARED), machineType="n1-standard-4")
    lines = write_lines(tmp_path / "rows.jsonl", [[1.0], ["2.0"], True, [None]])
    submitted = submit(server, job("bare", str(lines), tmp_path / "out", versionName=name), "local")

    online = [server.predict(name, [row]).json["predictions"][0] for row in ([1.0], ["2.0"], True, [None])]
    both = server.predict(name, [[1.0], ["2.0"]])
    told = server.call("GET", f"{name}:schema").json
    document = server.call("GET", f"/openapi.json?parent={MODEL}").json

    assert online == [[2.5], [3.0], 2.5, [None]]
    assert both.json == {"predictions": [[2.5], [3.0]]}
    answer = server.predict(name, [told["example"]]).json["predictions"]
    assert answer == [told["answer"]]
    post = document["paths"][f"/v1/{name}:predict"]["post"]["responses"]["200"]["content"]["application/json"]
    assert post["example"] == {"predictions": answer}
    assert {"type": "array"}.items() <= _items(post["schema"])["anyOf"][-1].items()
    assert finished(server, submitted)["state"] == "SUCCEEDED"
    assert results(tmp_path / "out") == online


def _items(answer: dict[str, Any]) -> dict[str, Any]:
    """The schema of one prediction, in that of an answer."""
    items: dict[str, Any] = answer["properties"]["predictions"]["items"]
    return items


def test_the_quick_start_of_tensorflow_serving(server: Server, operations: dict[str, Any]) -> None:
    """A shape that the graph accepts, though the signature declares another; wrong declarations warn."""
    name = f"{MODEL}/versions/{saved_models.SHARED}"

    ours = server.predict(name, [1.0, 2.0, 5.0])
    path = f"/v1/models/saved/versions/{saved_models.SHARED}:predict"
    rows = server.call("POST", path, json={"instances": [1.0, 2.0, 5.0]})
    columns = server.call("POST", path, json={"inputs": [1.0, 2.0, 5.0]})

    regressed = server.call(
        "POST",
        path.replace(":predict", ":regress"),
        json={"signature_name": "regress", "examples": [{"x": 1.0}]},
    )

    warnings = operations[saved_models.SHARED]["metadata"]["warnings"]
    assert warnings == [
        "Signature gone is left out: the graph has no tensor nowhere:0, which it names as x. Export the "
        "model again.",
        "Signature regress declares inputs as float32, but tf_example:0 is string: it is served as string.",
    ]
    assert regressed.json == {"results": [2.5]}
    assert ours.json == {"predictions": [{"y": 2.5}, {"y": 3.0}, {"y": 4.5}]}
    assert rows.json == {"predictions": [2.5, 3.0, 4.5]}
    assert columns.json == {"outputs": [2.5, 3.0, 4.5]}


def test_a_recorded_request_that_fails_is_a_warning(server: Server, folders: Path) -> None:
    """It is told of, and predictions go on."""
    name = f"{MODEL}/versions/{saved_models.WARMED}"
    server.create_model(MODEL) if server.call("GET", MODEL).status == 404 else None

    operation = server.wait(server.begin_version(name, deploymentUri=str(folders / saved_models.WARMED)))

    assert "error" not in operation
    version = server.call("GET", name).json
    assert version["state"] == "READY"
    assert version["warnings"] == operation["metadata"]["warnings"]
    (warning,) = (one for one in version["warnings"] if "recorded" in one)
    assert warning.startswith("The recorded warm-up request 2 was not answered: ")
    assert server.predict(name, [1.0, 2.0]).json == {"predictions": [{"y": 2.5}, {"y": 3.0}]}


def test_a_signature_that_was_left_out_is_answered_with_the_reason(
    server: Server, operations: dict[str, Any]
) -> None:
    """In rows, in columns, and over the Open Inference Protocol."""
    assert "error" not in operations[saved_models.SHARED]
    path = f"/v1/models/saved/versions/{saved_models.SHARED}:predict"
    wanted = "Signature gone is left out: the graph has no tensor nowhere:0"
    for given in ({"instances": [1.0]}, {"inputs": [1.0]}, {"inputs": {"x": ["a", 1]}}):
        answer = server.call("POST", path, json={"signature_name": "gone", **given})
        assert (answer.status, wanted in answer.json["error"]) == (400, True), answer.json

    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
    answer = server.call(
        "POST",
        f"/v2/models/saved/versions/{saved_models.SHARED}/infer",
        json={"inputs": [tensor], "parameters": {"signature_name": "gone"}},
    )
    assert (answer.status, wanted in answer.json["error"]) == (400, True), answer.json


@needs_chromium
def test_a_file_is_predicted_by_form(server: Server, operations: dict[str, Any], tmp_path: Path) -> None:
    """The bytes of an example, for a signature that takes such; a large file is refused before it is sent."""
    example = load_message_class("tensorflow.Example")()
    example.features.feature["x"].float_list.value.append(1.0)
    (tmp_path / "example").write_bytes(example.SerializeToString())
    (tmp_path / "large").write_bytes(bytes((2 << 20) + 1))
    with running_chromium() as browser:
        page = browser.new_page(viewport={"width": 360, "height": 740})
        path = f"{MODEL}/versions/{saved_models.SHARED}"
        page.goto(f"{server.url}/console/{path}")
        chooser = page.get_by_label("File for inputs (signature regress)")
        chooser.set_input_files(tmp_path / "large")
        assert "too large" in chooser.evaluate("input => input.validationMessage")
        chooser.set_input_files(tmp_path / "example")
        assert fits(page)
        page.get_by_role("button", name="Predict").click()
        page.get_by_text("HTTP 200").wait_for()
        assert "2.5" in page.locator("#try-it pre", has_text="predictions").first.inner_text()
