"""What is refused, in Google's form and words, with Google's own client."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from tests.end_to_end.conftest import ZOO
from tests.server import Server

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
    zoo: dict[str, Any],
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


def test_a_duplicate_model_is_told_in_the_words_airflow_looks_for(ml: Any, zoo: dict[str, Any]) -> None:
    """It compares this one violation verbatim, and takes it for success."""
    with pytest.raises(HttpError) as caught:
        ml.projects().models().create(parent="projects/tests", body={"name": "zoo"}).execute()

    assert caught.value.resp.status == 409
    assert json.loads(caught.value.content)["error"]["details"][0]["fieldViolations"] == [
        {"field": "model.name", "description": "A model with the same name already exists."}
    ]
    assert caught.value.error_details[0]["fieldViolations"][0]["field"] == "model.name"
