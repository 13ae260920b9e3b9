"""Code written for AI Platform, with Google's own client, against a real server."""

from __future__ import annotations

import json
import re
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


# ---- refusals


REFUSALS: list[tuple[str, str, str, dict[str, Any], int, str, str]] = [
    (
        "the default version while there are others",
        *("DELETE", f"{ZOO}/versions/sklearn", {}),
        *(400, "FAILED_PRECONDITION", "name: .*default version sklearn.*Make another version the default"),
    ),
    (
        "a model that has versions",
        *("DELETE", ZOO, {}),
        *(400, "FAILED_PRECONDITION", "name: .*has versions. Delete its versions first"),
    ),
    (
        "a model that exists",
        *("POST", "projects/tests/models", {"json": {"name": "zoo"}}),
        *(409, "ALREADY_EXISTS", "model.name: A model with the same name already exists."),
    ),
    (
        "a version that exists",
        *("POST", f"{ZOO}/versions", {"json": {"name": "xgboost", "deploymentUri": "/x"}}),
        *(409, "ALREADY_EXISTS", "version.name: A version with the same name already exists."),
    ),
    ("an unknown model", "GET", "projects/tests/models/no", {}, 404, "NOT_FOUND", "name: .*models create no"),
    ("an unknown version", "GET", f"{ZOO}/versions/no", {}, 404, "NOT_FOUND", "name: .*zoo/versions/no"),
    (
        "a version of an unknown model",
        *("POST", "projects/tests/models/no/versions", {"json": {"name": "v", "deploymentUri": "/x"}}),
        *(404, "NOT_FOUND", "name: .*models/no"),
    ),
    ("the default of no version", "POST", f"{ZOO}/versions/no:setDefault", {}, 404, "NOT_FOUND", "name: "),
    ("an unknown operation", "GET", "projects/tests/operations/no", {}, 404, "NOT_FOUND", "name: "),
    ("the cancel of none", "POST", "projects/tests/operations/no:cancel", {}, 404, "NOT_FOUND", "name: "),
    ("a prediction of no model", "POST", "projects/tests/models/no:predict", {}, 404, "NOT_FOUND", "name: "),
    ("a prediction of no version", "POST", f"{ZOO}/versions/no:predict", {}, 404, "NOT_FOUND", "name: "),
    ("a prediction of nothing", "POST", "nonsense:predict", {}, 400, "INVALID_ARGUMENT", "projects/PROJECT"),
    (
        "a model id that starts with a digit",
        *("POST", "projects/tests/models", {"json": {"name": "1st"}}),
        *(400, "INVALID_ARGUMENT", "model.name: .*must start with a letter"),
    ),
    (
        "a version id with a slash",
        *("POST", f"{ZOO}/versions", {"json": {"name": "v/../1", "deploymentUri": "/x"}}),
        *(400, "INVALID_ARGUMENT", "version.name: .*only letters"),
    ),
    (
        "a model without an id",
        *("POST", "projects/tests/models", {"json": {}}),
        *(400, "INVALID_ARGUMENT", "model.name: "),
    ),
    (
        "a project that cannot be",
        *("GET", "projects/-x/models", {}),
        *(400, "INVALID_ARGUMENT", "project id '-x'"),
    ),
    (
        "a version without files",
        *("POST", f"{ZOO}/versions", {"json": {"name": "v"}}),
        *(400, "INVALID_ARGUMENT", "version.deployment_uri: .*gs://"),
    ),
    (
        "a routine without packages",
        *("POST", f"{ZOO}/versions", {"json": {"name": "v", "predictionClass": "a.B"}}),
        *(400, "INVALID_ARGUMENT", "version.package_uris: "),
    ),
    (
        "an unknown framework",
        *("POST", f"{ZOO}/versions", {"json": {"name": "v", "deploymentUri": "/x", "framework": "TORCH"}}),
        *(400, "INVALID_ARGUMENT", "version.framework: .*SCIKIT_LEARN"),
    ),
    (
        "a runtime version that is none",
        *("POST", f"{ZOO}/versions", {"json": {"name": "v", "deploymentUri": "/x", "runtimeVersion": "new"}}),
        *(400, "INVALID_ARGUMENT", "version.runtime_version: .*2.11"),
    ),
    (
        "both kinds of scaling",
        "POST",
        f"{ZOO}/versions",
        {"json": {"name": "v", "deploymentUri": "/x", "autoScaling": {}, "manualScaling": {"nodes": 1}}},
        *(400, "INVALID_ARGUMENT", "version.manual_scaling: "),
    ),
    (
        "a container",
        *("POST", f"{ZOO}/versions", {"json": {"name": "v", "container": {"image": "i"}}}),
        *(400, "FAILED_PRECONDITION", "version.container: .*container_engine"),
    ),
    (
        "a label that cannot be",
        *("POST", "projects/tests/models", {"json": {"name": "m", "labels": {"A": "b"}}}),
        *(400, "INVALID_ARGUMENT", "labels: .*lower-case"),
    ),
    (
        "two regions",
        *("POST", "projects/tests/models", {"json": {"name": "m", "regions": ["a", "b"]}}),
        *(400, "INVALID_ARGUMENT", "model.regions: "),
    ),
    (
        "a field that is not there",
        *("POST", "projects/tests/models", {"json": {"name": "m", "colour": "red"}}),
        *(400, "INVALID_ARGUMENT", 'Invalid JSON payload received. Unknown name "colour"'),
    ),
    (
        "a nested field that is not there",
        *("POST", f"{ZOO}/versions", {"json": {"name": "v", "autoScaling": {"most": 3}}}),
        *(400, "INVALID_ARGUMENT", 'Unknown name "most" at "autoScaling"'),
    ),
    (
        "a value of another type",
        *("POST", "projects/tests/models", {"json": {"name": ["m"]}}),
        *(400, "INVALID_ARGUMENT", r"Invalid value .*\$\.name"),
    ),
    (
        "a body that is no object",
        *("POST", "projects/tests/models", {"json": [1]}),
        *(400, "INVALID_ARGUMENT", "Invalid JSON payload received"),
    ),
    (
        "a body that is not JSON",
        *("POST", "projects/tests/models", {"content": b"{'name': 'm'}"}),
        *(400, "INVALID_ARGUMENT", "Invalid JSON payload received. .*line 1"),
    ),
    (
        "a body nested 5,000 deep",
        *("POST", "projects/tests/models", {"content": b"[" * 5000 + b"]" * 5000}),
        *(400, "INVALID_ARGUMENT", "Invalid JSON payload received"),
    ),
    (
        "a patch without a mask",
        *("PATCH", ZOO, {"json": {"description": "x"}}),
        *(400, "INVALID_ARGUMENT", "update_mask: .*updateMask=description"),
    ),
    (
        "a mask of what cannot change",
        *("PATCH", ZOO, {"params": {"updateMask": "name"}, "json": {"name": "x"}}),
        *(400, "INVALID_ARGUMENT", "update_mask: 'name' cannot be updated; .*description"),
    ),
    (
        "a version's mask of what cannot change",
        *("PATCH", f"{ZOO}/versions/xgboost", {"params": {"update_mask": "deploymentUri"}, "json": {}}),
        *(400, "INVALID_ARGUMENT", "update_mask: 'deploymentUri' cannot be updated; .*minNodes"),
    ),
    (
        "a request log that goes nowhere",
        "PATCH",
        f"{ZOO}/versions/xgboost",
        {
            "params": {"updateMask": "requestLoggingConfig"},
            "json": {"requestLoggingConfig": {"bigqueryTableName": "s3://p.d.t", "samplingPercentage": 1}},
        },
        *(400, "INVALID_ARGUMENT", "bigquery_table_name: .*s3://.*project.dataset.table"),
    ),
    (
        "a sample of more than all",
        "PATCH",
        f"{ZOO}/versions/xgboost",
        {
            "params": {"updateMask": "requestLoggingConfig"},
            "json": {"requestLoggingConfig": {"bigqueryTableName": "p.d.t", "samplingPercentage": 50}},
        },
        *(400, "INVALID_ARGUMENT", "sampling_percentage: .*from 0 to 1"),
    ),
    (
        "a wrong etag",
        *("PATCH", ZOO, {"params": {"updateMask": "description"}, "json": {"etag": "AAAA"}}),
        *(409, "ABORTED", "etag"),
    ),
    (
        "a filter nobody can read",
        *("GET", "projects/tests/models", {"params": {"filter": "name ~ census"}}),
        *(400, "INVALID_ARGUMENT", "filter: .*state:READY"),
    ),
    (
        "a filter nested 5,000 deep",
        *("GET", "projects/tests/models", {"params": {"filter": "(" * 5000}}),
        *(400, "INVALID_ARGUMENT", "filter: "),
    ),
    (
        "a page token from elsewhere",
        *("GET", f"{ZOO}/versions", {"params": {"pageToken": "Zm9v"}}),
        *(400, "INVALID_ARGUMENT", "page_token: "),
    ),
    (
        "a page of no size",
        *("GET", f"{ZOO}/versions", {"params": {"pageSize": "ten"}}),
        *(400, "INVALID_ARGUMENT", "page_size: 'ten'"),
    ),
    ("an unknown path", "GET", "/v3/projects", {}, 404, "NOT_FOUND", "/v1/projects/PROJECT"),
    ("a wrong method", "PUT", ZOO, {}, 405, "UNIMPLEMENTED", "PUT is not allowed"),
    ("a GET of a prediction", "GET", f"{ZOO}:predict", {}, 405, "UNIMPLEMENTED", "use POST"),
]


@pytest.mark.parametrize(
    ("method", "path", "request_", "status", "name", "says"),
    [row[1:] for row in REFUSALS],
    ids=[row[0] for row in REFUSALS],
)
def test_refusal(
    server: Server,
    zoo: Operations,
    method: str,
    path: str,
    request_: dict[str, Any],
    status: int,
    name: str,
    says: str,
) -> None:
    """Each with its status, Google's form, the field at fault where there is one, and what to do."""
    reply = server.call(method, path, **request_)

    assert (reply.status, reply.error["status"]) == (status, name), reply.json
    message = reply.error["message"]
    field = message.removeprefix("Field: ").partition(" Error: ")[0] if "Error: " in message else ""
    if field:
        description = message.removeprefix(f"Field: {field} Error: ")
        assert reply.error["details"] == [
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"field": field, "description": description}],
            }
        ]
        message = f"{field}: {description}"
    assert re.search(says, message), message


def test_a_duplicate_model_is_told_in_the_words_airflow_looks_for(ml: Any, zoo: Operations) -> None:
    """It compares this one violation verbatim, and takes it for success."""
    with pytest.raises(HttpError) as caught:
        ml.projects().models().create(parent="projects/tests", body={"name": "zoo"}).execute()

    assert caught.value.resp.status == 409
    assert json.loads(caught.value.content)["error"]["details"][0]["fieldViolations"] == [
        {"field": "model.name", "description": "A model with the same name already exists."}
    ]
    assert caught.value.error_details[0]["fieldViolations"][0]["field"] == "model.name"
