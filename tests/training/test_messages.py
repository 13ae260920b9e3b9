"""The seam between server and supervisor."""

from __future__ import annotations

import msgspec

from training.messages import (
    Heartbeat,
    ReplicaEvent,
    ReplicaGroup,
    ReplicaReport,
    ReplicaRole,
    TrainingReport,
    TrainingRequest,
)


def test_a_request_survives_its_way() -> None:
    request = TrainingRequest(
        job="j",
        uid="1",
        module="trainer.task",
        groups=(ReplicaGroup(ReplicaRole.MASTER), ReplicaGroup(ReplicaRole.WORKER, 2)),
        scratch_dir="/s",
        log_dir="/l",
        cache_dir="/c",
        cache_bytes=1,
    )

    assert msgspec.json.decode(msgspec.json.encode(request), type=TrainingRequest) == request
    assert request.size == 3


def test_a_report_has_one_field() -> None:
    assert msgspec.json.encode(TrainingReport(heartbeat=Heartbeat(1.5))) == (
        b'{"heartbeat":{"replica_seconds":1.5}}'
    )


def test_an_exit_code_of_zero_is_told() -> None:
    report = TrainingReport(replica=ReplicaReport("master-replica-0", ReplicaEvent.ENDED, 1, 0))

    assert b'"exit_code":0' in msgspec.json.encode(report)
