"""Code written for AI Platform, with Google's own client, against a real server."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from googleapiclient.errors import HttpError

from tests.end_to_end import models
from tests.end_to_end.conftest import DECORATION, ZOO, Files, wait
from tests.server import Server, until

Operations = dict[str, dict[str, Any]]
ROWS = models.data()[0][:3].tolist()


def predict(ml: Any, name: str, **body: Any) -> Any:
    return ml.projects().predict(name=name, body=body).execute()


# ---- creating


def test_create_answers_with_the_full_name_and_defaults(ml: Any) -> None:
    """The bare id goes in, the full name comes out; what the client left out is at its default."""
    body = {"name": "fresh", "onlinePredictionLogging": True}
    created = ml.projects().models().create(parent="projects/tests", body=body).execute()

    etag = created.pop("etag")
    assert created == {
        "name": "projects/tests/models/fresh",
        "regions": ["us-central1"],
        "onlinePredictionLogging": True,
    }
    assert ml.projects().models().get(name=created["name"]).execute() == {**created, "etag": etag}

    deleted = ml.projects().models().delete(name=created["name"]).execute()

    assert deleted["done"]
    assert deleted["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}


def test_an_operation_tells_what_it_did(zoo: Operations) -> None:
    """A finished operation has the version, both as it was asked for and as it came out."""
    operation = zoo["sklearn"]

    metadata, response = operation["metadata"], operation["response"]
    assert operation["name"].startswith("projects/tests/operations/create_zoo_sklearn-")
    assert metadata["@type"] == "type.googleapis.com/google.cloud.ml.v1.OperationMetadata"
    assert metadata["operationType"] == "CREATE_VERSION"
    assert metadata["modelName"] == ZOO
    assert metadata["createTime"] <= metadata["startTime"] <= metadata["endTime"]
    assert "state" not in metadata["version"]
    assert not metadata["version"]["deploymentUri"].endswith("/")
    assert "error" not in operation
    assert response["@type"] == "type.googleapis.com/google.cloud.ml.v1.Version"
    assert response["name"] == f"{ZOO}/versions/sklearn"
    assert response["framework"] == "SCIKIT_LEARN"
    assert response["state"] == "READY"


def test_the_first_version_is_the_default(ml: Any, zoo: Operations) -> None:
    """A model shows its default version in full."""
    model = ml.projects().models().get(name=ZOO).execute()

    default = ml.projects().models().versions().get(name=f"{ZOO}/versions/sklearn").execute()
    assert default["isDefault"]
    assert model["defaultVersion"] == default


def test_whatever_else_a_version_says_is_kept(ml: Any, zoo: Operations) -> None:
    """Fields we do nothing with are accepted and echoed, old runtime versions too."""
    version = ml.projects().models().versions().get(name=f"{ZOO}/versions/xgboost").execute()

    assert {name: version[name] for name in DECORATION} == DECORATION
    assert version["framework"] == "XGBOOST"


def test_a_custom_routine_keeps_what_was_said_of_it(ml: Any, zoo: Operations) -> None:
    """A framework too, although its class alone decides how it is loaded."""
    version = ml.projects().models().versions().get(name=f"{ZOO}/versions/routine").execute()

    assert version["framework"] == "TENSORFLOW"
    assert version["predictionClass"] == "routine.Routine"
    assert version["serviceAccount"] == "routine@tests.iam.gserviceaccount.com"


# ---- predicting


def test_sklearn_predicts(ml: Any, zoo: Operations, files: Files) -> None:
    """The labels that the estimator gives."""
    answer = predict(ml, f"{ZOO}/versions/sklearn", instances=ROWS)

    assert answer == {"predictions": files.sklearn.predict(ROWS).tolist()}


def test_xgboost_predicts(ml: Any, zoo: Operations, files: Files) -> None:
    """The numbers that the booster gives."""
    import xgboost as xgb

    answer = predict(ml, f"{ZOO}/versions/xgboost", instances=ROWS)

    wanted = files.xgboost.predict(xgb.DMatrix(np.array(ROWS)))
    np.testing.assert_array_equal(np.array(answer["predictions"], np.float32), wanted)


def test_tensorflow_predicts(ml: Any, zoo: Operations) -> None:
    """An object keyed by output; the signature is chosen by name."""
    name = f"{ZOO}/versions/tensorflow"

    plain = predict(ml, name, instances=[[1, 2], {"x": [0.5, -1]}])
    pair = predict(ml, name, signature_name="pair", instances=[{"n": 1, "s": {"b64": "aGk="}}])

    assert plain == {"predictions": [{"doubled": [2.0, 4.0]}, {"doubled": [1.0, -2.0]}]}
    assert pair == {"predictions": [{"half": 0.5, "text": "hi", "raw_bytes": {"b64": "aGk="}}]}


def test_a_custom_routine_predicts(ml: Any, zoo: Operations) -> None:
    """It finds its files, its own version in the environment, and extra fields as keyword arguments."""
    name = f"{ZOO}/versions/routine"

    answer = predict(ml, name, instances=[1, 2.5, "version"])
    extra = predict(ml, name, instances=[1], deep={"list": [None, True]})

    assert answer == {"predictions": [10, 25, "routine.Routine"]}
    assert extra == {"predictions": [{"deep": {"list": [None, True]}}]}


def test_a_pipeline_with_the_users_own_step_predicts(ml: Any, zoo: Operations, files: Files) -> None:
    """packageUris also holds what a plain scikit-learn pickle needs."""
    answer = predict(ml, f"{ZOO}/versions/pipeline", instances=ROWS)

    np.testing.assert_array_equal(answer["predictions"], files.pipeline.predict(ROWS))


def test_nan_is_answered_as_null(ml: Any, zoo: Operations) -> None:
    """JSON has no word for it."""
    answer = predict(ml, f"{ZOO}/versions/tensorflow", instances=[[1e39, -1e39]])

    assert answer == {"predictions": [{"doubled": [None, None]}]}


def test_a_model_predicts_with_its_default_version(ml: Any, zoo: Operations, files: Files) -> None:
    """setDefault takes effect at once and answers with the version."""
    versions = ml.projects().models().versions()
    before = predict(ml, ZOO, instances=ROWS)

    now = versions.setDefault(name=f"{ZOO}/versions/routine", body={}).execute()
    after = predict(ml, ZOO, instances=[1])
    listed = {version["name"]: version for version in versions.list(parent=ZOO).execute()["versions"]}
    versions.setDefault(name=f"{ZOO}/versions/sklearn", body={}).execute()

    assert before == {"predictions": files.sklearn.predict(ROWS).tolist()}
    assert now["isDefault"]
    assert after == {"predictions": [10]}
    assert [name for name, version in listed.items() if version.get("isDefault")] == [
        f"{ZOO}/versions/routine"
    ]
    assert predict(ml, ZOO, instances=ROWS) == before


# ---- listing


def test_lists_come_in_pages(ml: Any, server: Server) -> None:
    """Twenty by default, at most a hundred; `list_next` walks through all of them in order."""
    names = [f"projects/paging/models/m{number:03}" for number in range(103)]
    for name in names:
        server.create_model(name, labels={"parity": "odd" if name[-1] in "13579" else "even"})
    models = ml.projects().models()

    def pages(**query: Any) -> list[list[str]]:
        found = []
        request = models.list(parent="projects/paging", **query)
        while request is not None:
            response = request.execute()
            found.append([model["name"] for model in response["models"]])
            request = models.list_next(request, response)
        return found

    by_default = pages()
    odd = pages(filter="labels.parity=odd", pageSize=50)

    assert [len(page) for page in by_default] == [20, 20, 20, 20, 20, 3]
    assert list(chain(*by_default)) == names
    assert [len(page) for page in pages(pageSize=1000)] == [100, 3]
    assert [len(page) for page in odd] == [50, 1]
    assert list(chain(*odd)) == names[1::2]


def test_an_empty_list_is_an_empty_object(ml: Any, zoo: Operations) -> None:
    """No key at all, for a project nobody has used, and for a filter nothing matches."""
    assert ml.projects().models().list(parent="projects/nobody").execute() == {}
    assert ml.projects().models().versions().list(parent=ZOO, filter="state:FAILED").execute() == {}


def test_versions_are_found_by_filter(ml: Any, zoo: Operations) -> None:
    """Names by their last part, fields by their value."""

    def found(text: str) -> list[str]:
        answer = ml.projects().models().versions().list(parent=ZOO, filter=text).execute()
        return [version["name"].rsplit("/", 1)[-1] for version in answer["versions"]]

    assert found("state:READY AND framework=XGBOOST") == ["xgboost"]
    assert found("name:s*") == ["sklearn"]
    assert found("NOT framework:*SC AND (labels.team=ads OR predictionClass:routine.*)") == [
        "routine",
        "xgboost",
    ]


def test_operations_are_listed_newest_first(ml: Any, zoo: Operations) -> None:
    """All operations of the project, in pages."""
    operations = ml.projects().operations()
    request = operations.list(name="projects/tests", filter="metadata.operationType=CREATE_VERSION")

    found: list[Any] = []
    while request is not None:  # other tests make versions on this server too
        answer = request.execute()
        found += answer["operations"]
        request = operations.list_next(request, answer)

    times = [operation["metadata"]["createTime"] for operation in found]
    assert {operation["name"] for operation in found} >= {operation["name"] for operation in zoo.values()}
    assert times == sorted(times, reverse=True)


def test_the_cancel_of_a_finished_operation_does_nothing(ml: Any, zoo: Operations) -> None:
    """It answers {} and the operation stays as it is."""
    name = zoo["sklearn"]["name"]

    assert ml.projects().operations().cancel(name=name).execute() == {}
    assert ml.projects().operations().get(name=name).execute() == zoo["sklearn"]


def test_a_project_has_locations_and_a_config(ml: Any) -> None:
    """gcloud asks for them; what is no region of the service is not there."""
    locations = ml.projects().locations()

    names = [one["name"] for one in locations.list(parent="projects/tests").execute()["locations"]]
    one = locations.get(name="projects/tests/locations/us-central1").execute()
    config = ml.projects().getConfig(name="projects/tests").execute()

    assert one["name"] in names
    assert one["capabilities"] == [{"type": "BATCH_PREDICTION"}, {"type": "ONLINE_PREDICTION"}]
    assert config["serviceAccount"].endswith(".iam.gserviceaccount.com")
    with pytest.raises(HttpError) as caught:
        locations.get(name="projects/tests/locations/mars-north1").execute()
    assert caught.value.resp.status == 404


# ---- changing


def test_a_model_is_patched_by_mask(ml: Any, zoo: Operations) -> None:
    """Only what the mask names changes; the operation is done at once and carries the model."""
    models = ml.projects().models()
    before = models.get(name=ZOO).execute()
    body = {"description": "changed", "labels": {"kind": "other"}}

    operation = models.patch(name=ZOO, body=body, updateMask="description").execute()

    after = models.get(name=ZOO).execute()
    for model in (before, after, operation["response"]):
        model["defaultVersion"].pop("lastUseTime", None)  # a running server writes it down now and then
    assert operation["done"]
    assert operation["metadata"]["operationType"] == "UPDATE_MODEL"
    assert operation["response"] == {"@type": "type.googleapis.com/google.cloud.ml.v1.Model", **after}
    assert after == {**before, "description": "changed", "etag": after["etag"]}
    assert after["etag"] != before["etag"]

    models.patch(name=ZOO, body={"labels": {"kind": "tests"}}, updateMask="labels").execute()

    assert models.get(name=ZOO).execute()["labels"] == {"kind": "tests"}


def test_the_default_version_can_be_patched(ml: Any, zoo: Operations) -> None:
    """`default_version.name` in the mask, with a bare id or a full name."""
    models = ml.projects().models()

    def patch(version: str) -> Any:
        body = {"defaultVersion": {"name": version}}
        models.patch(name=ZOO, body=body, updateMask="default_version.name").execute()
        return models.get(name=ZOO).execute()["defaultVersion"]["name"]

    assert patch("xgboost") == f"{ZOO}/versions/xgboost"
    assert patch(f"{ZOO}/versions/sklearn") == f"{ZOO}/versions/sklearn"


@pytest.mark.parametrize(
    ("mask", "body", "wanted"),
    [
        ("description", {"description": "new"}, {"description": "new"}),
        ("labels", {"labels": {"a": "b"}}, {"labels": {"a": "b"}}),
        (
            "autoScaling.minNodes",
            {"autoScaling": {"minNodes": 2}},
            {"autoScaling": {**DECORATION["autoScaling"], "minNodes": 2}},
        ),
        ("manualScaling.nodes", {"manualScaling": {"nodes": 1}}, {"manualScaling": {"nodes": 1}}),
        ("manual_scaling.nodes", {"manual_scaling": {"nodes": 3}}, {"manualScaling": {"nodes": 3}}),
        ("auto_scaling.max_nodes", {"autoScaling": {"maxNodes": 4}}, {"autoScaling": {"maxNodes": 4}}),
        (
            "description,requestLoggingConfig",
            {
                "description": "logged",
                "requestLoggingConfig": {"bigqueryTableName": "p.d.t", "samplingPercentage": 0.5},
            },
            {
                "description": "logged",
                "requestLoggingConfig": {"bigqueryTableName": "p.d.t", "samplingPercentage": 0.5},
            },
        ),
    ],
)
def test_a_version_is_patched_by_mask(
    ml: Any, zoo: Operations, mask: str, body: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """Masks in either spelling; setting one kind of scaling leaves the other."""
    versions, name = ml.projects().models().versions(), f"{ZOO}/versions/xgboost"

    operation = versions.patch(name=name, body=body, updateMask=mask).execute()

    version = versions.get(name=name).execute()
    assert operation["done"]
    assert operation["metadata"]["operationType"] == "UPDATE_VERSION"
    assert operation["response"]["etag"] == version["etag"]
    assert {field: version[field] for field in wanted} == wanted
    assert not {"autoScaling", "manualScaling"} <= version.keys()
    assert predict(ml, name, instances=ROWS)["predictions"]


def test_request_logging_is_only_switched_on_by_a_patch(ml: Any, server: Server) -> None:
    """On creation it is ignored, as on AI Platform."""
    server.create_model("projects/logging/models/m")
    config = {"bigqueryTableName": "p.d.t", "samplingPercentage": 1}
    operation = server.begin_version(
        "projects/logging/models/m/versions/v", deploymentUri="/nowhere", requestLoggingConfig=config
    )

    server.wait(operation)

    version = server.call("GET", "projects/logging/models/m/versions/v").json
    assert "requestLoggingConfig" not in version


def test_requests_are_logged_where_the_patch_says(
    ml: Any, server: Server, zoo: Operations, tmp_path: Path
) -> None:
    """Body and answer of each request, in the columns of AI Platform's table; `{}` switches it off."""
    versions, name = ml.projects().models().versions(), f"{ZOO}/versions/pipeline"
    config = {"bigqueryTableName": str(tmp_path / "rows"), "samplingPercentage": 1}
    body = {"requestLoggingConfig": config}
    versions.patch(name=name, body=body, updateMask="requestLoggingConfig").execute()

    answer = predict(ml, name, instances=ROWS)
    predict(ml, f"{ZOO}/versions/xgboost", instances=ROWS)
    written = until(lambda: list(tmp_path.glob("rows/*/*.jsonl")), "the log is written")
    versions.patch(name=name, body={}, updateMask="requestLoggingConfig").execute()
    predict(ml, name, instances=ROWS)

    (line,) = written[0].read_text().splitlines()
    row = json.loads(line)
    assert (row["model"], row["model_version"]) == ("zoo", "pipeline")
    assert json.loads(row["raw_data"]) == {"instances": ROWS}
    assert json.loads(row["raw_prediction"]) == answer
    stats = server.call("GET", "/stats").json["requestLog"]
    assert stats["sampled"] == stats["sent"] + stats["dropped"] + stats["waiting"]
    assert stats["dropped"] == 0


def test_a_stale_etag_is_refused(ml: Any, server: Server, zoo: Operations) -> None:
    """Read, change, write back: the second writer learns that it read too early."""
    versions, name = ml.projects().models().versions(), f"{ZOO}/versions/tensorflow"
    read = versions.get(name=name).execute()

    versions.patch(name=name, body={**read, "description": "first"}, updateMask="description").execute()
    second = server.call(
        "PATCH", name, params={"updateMask": "description"}, json={**read, "description": "second"}
    )

    assert second.error["status"] == "ABORTED"
    assert second.status == 409
    assert versions.get(name=name).execute()["description"] == "first"


# ---- removing


def test_a_version_and_then_its_model_can_be_deleted(ml: Any, server: Server, files: Files) -> None:
    """The last version may go although it is the default; its process goes with it."""
    model, name = "projects/tests/models/brief", "projects/tests/models/brief/versions/v1"
    server.create_model(model)
    server.create_version(name, deploymentUri=str(files.root / "sklearn"))
    uid = server.uid(name)
    assert server.nodes(name)

    deleted = wait(ml, ml.projects().models().versions().delete(name=name).execute())

    assert deleted["metadata"]["operationType"] == "DELETE_VERSION"
    assert deleted["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    assert not (server.state_dir / "versions" / uid).exists()
    assert server.call("GET", name).status == 404
    assert server.predict(model, ROWS).error["status"] == "FAILED_PRECONDITION"
    assert "defaultVersion" not in server.call("GET", model).json
    assert ml.projects().models().delete(name=model).execute()["done"]
    assert server.call("GET", model).status == 404


def test_a_creation_can_be_cancelled(ml: Any, server: Server, files: Files) -> None:
    """The operation ends with CANCELLED, the version is FAILED and can be deleted."""
    gated = files.root / "gated"
    gated.mkdir()
    (gated / "gate.txt").write_text(str(files.root / "never"))
    model, name = "projects/tests/models/cancelled", "projects/tests/models/cancelled/versions/v1"
    server.create_model(model)
    operation = server.begin_version(
        name,
        deploymentUri=str(gated),
        predictionClass="routine.Routine",
        packageUris=[str(files.root / "routine-0.1.tar.gz")],
    )

    # Deleting waits until the creation has ended.
    assert server.call("DELETE", name).error["status"] == "FAILED_PRECONDITION"
    assert ml.projects().operations().cancel(name=operation).execute() == {}

    done = server.wait(operation)
    assert done["error"]["code"] == 1
    assert done["metadata"]["isCancellationRequested"]
    assert server.call("GET", name).json["state"] == "FAILED"
    server.delete(name)
    server.delete(model)
