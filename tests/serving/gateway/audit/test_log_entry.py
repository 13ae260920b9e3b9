from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from serving.errors import NotFound, PermissionDenied
from serving.gateway.audit.log_entry import (
    AuditedCall,
    AuditEvent,
    AuditLogType,
    AuditStage,
    CallStatus,
    encode_line,
    status_from_error,
)

CALL = AuditedCall(
    id="0a1b",
    log=AuditLogType.ACTIVITY,
    method="projects.models.create",
    resource="projects/p/models/m",
    authorized_resource="projects/p",
    permission="ml.models.create",
    principal="user:ann@example.com",
    request_id="req-1",
    caller_ip="10.0.0.7",
    user_agent="curl/8",
    request={"name": "m"},
)


def entry(call: AuditedCall = CALL, **event: Any) -> Any:
    return json.loads(
        encode_line(AuditEvent(**{"call": call, "stage": AuditStage.AFTER, "time": 1.5, **event}))
    )


def test_a_line_is_a_log_entry() -> None:
    """With every part that Cloud Audit Logs has for it."""
    assert entry() == {
        "timestamp": "1970-01-01T00:00:01.500000Z",
        "insertId": "0a1bb",
        "logName": "projects/p/logs/cloudaudit.googleapis.com%2Factivity",
        "severity": "NOTICE",
        "resource": {
            "type": "audited_resource",
            "labels": {
                "project_id": "p",
                "service": "ml.googleapis.com",
                "method": "google.cloud.ml.v1.ModelService.CreateModel",
            },
        },
        "labels": {"request_id": "req-1"},
        "operation": {"id": "0a1b", "producer": "ml.googleapis.com", "last": True},
        "protoPayload": {
            "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
            "serviceName": "ml.googleapis.com",
            "methodName": "google.cloud.ml.v1.ModelService.CreateModel",
            "resourceName": "projects/p/models/m",
            "authenticationInfo": {
                "principalEmail": "ann@example.com",
                "principalSubject": "user:ann@example.com",
            },
            "authorizationInfo": [
                {"resource": "projects/p", "permission": "ml.models.create", "granted": True}
            ],
            "requestMetadata": {"callerIp": "10.0.0.7", "callerSuppliedUserAgent": "curl/8"},
            "request": {"name": "m"},
            "status": {},
        },
    }


def test_the_line_from_before_a_change_has_no_status() -> None:
    """Nobody knows yet."""
    before = entry(stage=AuditStage.BEFORE)

    assert "status" not in before["protoPayload"]
    assert before["operation"] == {"id": "0a1b", "producer": "ml.googleapis.com", "first": True}


def test_a_call_whose_work_goes_on_names_it() -> None:
    """And is not the last line."""
    going_on = entry(operation="projects/p/operations/o", last=False)

    assert going_on["protoPayload"]["metadata"] == {"operation": "projects/p/operations/o"}
    assert "last" not in going_on["operation"]


def test_a_denied_call() -> None:
    """The permission was not granted."""
    denied = entry(stage=AuditStage.ONLY, status=status_from_error(PermissionDenied("no")))

    assert denied["severity"] == "ERROR"
    assert denied["protoPayload"]["authorizationInfo"][0]["granted"] is False
    assert denied["protoPayload"]["status"] == {"code": 7, "message": "no"}
    assert "operation" not in denied


def test_a_failed_call_was_allowed() -> None:
    """What failed for another reason had the permission."""
    failed = entry(status=status_from_error(NotFound("none")))

    assert failed["protoPayload"]["authorizationInfo"][0]["granted"] is True
    assert failed["protoPayload"]["status"]["code"] == 5


def test_data_access_is_a_log_of_its_own() -> None:
    """At a lower severity."""
    read = entry(replace(CALL, log=AuditLogType.DATA_ACCESS), stage=AuditStage.ONLY)

    assert read["logName"].endswith("%2Fdata_access")
    assert read["severity"] == "INFO"


def test_without_access_control_nobody_is_named() -> None:
    """And no permission was granted."""
    payload = entry(replace(CALL, principal=""))["protoPayload"]

    assert payload["authenticationInfo"] == {}
    assert "authorizationInfo" not in payload


def test_no_rows_and_no_secrets() -> None:
    """Wherever in the request they are."""
    request = {
        "instances": [[1, 2]],
        "password": "x",
        "nested": [{"apiKey": "x", "accessToken": "x", "fine": 1}],
        "container": {"env": [{"name": "HOME", "value": "x"}]},
        "labels": {"team": "ads"},
    }
    shown = entry(replace(CALL, request=request))["protoPayload"]["request"]

    assert '"x"' not in json.dumps(shown)
    assert shown["instances"] == "[redacted]"
    assert shown["nested"][0]["fine"] == 1
    assert shown["labels"] == {"team": "ads"}
    assert shown["container"]["env"][0]["name"] == "HOME"


def test_a_large_request_is_left_out() -> None:
    """A line stays short; it says how much was left out."""
    large = entry(replace(CALL, request={"description": "a" * 100_000}))

    assert large["protoPayload"]["request"] == {"omitted": "100018 bytes"}


def test_a_deep_request_is_cut() -> None:
    """However deep a body is, its line can be written."""
    deep: Any = {"inner": 1}
    for _ in range(900):
        deep = [{"inner": deep}]

    assert "[deeper]" in json.dumps(entry(replace(CALL, request={"labels": deep}))["protoPayload"]["request"])


def test_what_clients_send_stays_in_its_line() -> None:
    """No name or header can begin a new one."""
    call = replace(CALL, resource='projects/p/models/m"\n{}', user_agent="a\r\nb\x00\x85")
    line = encode_line(
        AuditEvent(call=call, stage=AuditStage.ONLY, time=0, status=CallStatus(3, "bad\nname"))
    )

    assert line.count(b"\n") == 1
    assert json.loads(line)["protoPayload"]["resourceName"] == call.resource
