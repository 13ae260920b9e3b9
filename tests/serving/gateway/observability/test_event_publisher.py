"""Which events come of decisions, nodes and commits."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from autoscaler.pools import Node, NodeSpec, NodeState
from autoscaler.version_scaler import ScalingEvent
from serving.errors import LoadFailed
from serving.gateway.catalog import models, operations, versions
from serving.gateway.observability.event_publisher import EventPublisher, find_occurrences
from serving.gateway.observability.event_stream import EventStream
from serving.gateway.state.catalog_state import CatalogState, Commit, StateDraft
from serving.gateway.state.records import ChangeStamp, JobRecord, VersionUsage
from serving.names import ModelName, VersionName
from serving.resources import Job, JobState, Model, Version
from tests.autoscaler.fakes import memory
from tests.serving.gateway.catalog_world import DEPLOYED

MODEL, NAME = ModelName("p", "m"), VersionName("p", "m", "v1")
M, V = str(MODEL), str(NAME)
SPEC = NodeSpec("uid", V, "", {}, {}, start_timeout=1, concurrency=1)


class Changes:
    """Commits one rule after the other; `seen` has what came of the last one."""

    def __init__(self) -> None:
        self.state = CatalogState()
        self.seen: list[dict[str, Any]] = []
        self._count = 0

    def do(self, rule: Callable[..., Any], *arguments: Any) -> Any:
        self._count += 1
        start = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
        stamp = ChangeStamp(start + datetime.timedelta(seconds=self._count), f"{self._count:016x}")
        draft = StateDraft(self.state)
        answer = rule(draft, stamp, *arguments)
        commit = Commit(self.state, draft.to_state(), draft.changes)
        self.state = commit.after
        self.seen = [{"kind": one.kind.value, **one.fields} for one in find_occurrences(commit)]
        return answer


def put(draft: StateDraft, _: ChangeStamp, record: Any) -> None:
    draft.put(record)


def delete(draft: StateDraft, _: ChangeStamp, record: Any) -> None:
    draft.delete(record)


def test_the_life_of_a_version() -> None:
    """With its model and its operations; use and phases that stay the same are no news."""
    changes = Changes()
    changes.do(models.create_model, "p", Model(name="m"))
    assert changes.seen == [{"kind": "model", "model": M, "change": "created"}]

    operation = changes.do(versions.create_version, MODEL, Version(name="v1", deployment_uri="gs://b/m")).name
    begun = {"kind": "operation", "operation": operation, "type": "CREATE_VERSION", "target": V}
    created = {"kind": "version", "version": V, "change": "created", "state": "CREATING"}
    assert [one for one in changes.seen if one["kind"] != "model"] == [created, {**begun, "done": False}]

    changes.do(operations.enter_phase, operation, "LOADING")
    assert changes.seen == [{**begun, "done": False, "phase": "LOADING"}]
    changes.do(operations.cancel_operation, operation)
    assert changes.seen == []

    changes.do(versions.complete_create, operation, DEPLOYED, ())
    assert {"kind": "version", "version": V, "change": "changed", "state": "READY"} in changes.seen
    assert {**begun, "done": True} in changes.seen

    uid = changes.state.versions[NAME].uid
    changes.do(versions.record_usage, {NAME: (uid, VersionUsage("2030-01-01T00:00:00Z", 1, 0.1))})
    assert changes.seen == []
    changes.do(versions.record_start_failure, NAME, uid, "x" * 600)
    assert changes.seen[0]["errorMessage"].startswith("x" * 500 + " ... (100 more")

    deletion = changes.do(versions.delete_version, NAME).name
    assert {"version": V, "state": "DELETING"}.items() <= changes.seen[-2].items()
    changes.do(versions.finish_delete, deletion)
    assert ("version", "deleted") in [(one["kind"], one.get("change")) for one in changes.seen]


def test_a_failed_creation_says_why() -> None:
    changes = Changes()
    changes.do(models.create_model, "p", Model(name="m"))
    operation = changes.do(versions.create_version, MODEL, Version(name="v1", deployment_uri="gs://b/m")).name
    changes.do(versions.fail_create, operation, LoadFailed("no\ud800 model"))

    assert sorted(one["kind"] for one in changes.seen) == ["operation", "version"]
    assert all("no? model" in one["errorMessage"] for one in changes.seen)


def test_states_of_jobs_are_told_and_other_changes_of_them_are_not() -> None:
    changes = Changes()
    name = "projects/p/jobs/j"
    record = JobRecord(name=name, project="p", uid="u", number=1, job=Job(job_id="j", state=JobState.QUEUED))
    changes.do(put, record)
    assert changes.seen == [{"kind": "job", "job": name, "state": "QUEUED"}]
    changes.do(put, msgspec.structs.replace(record, attempt=1))
    assert changes.seen == []
    failed = Job(job_id="j", state=JobState.FAILED, error_message="<b>")
    record = msgspec.structs.replace(record, job=failed)
    changes.do(put, record)
    assert changes.seen == [{"kind": "job", "job": name, "state": "FAILED", "errorMessage": "<b>"}]
    changes.do(delete, record)
    assert changes.seen == []


def test_decisions_and_nodes_are_told_with_the_name_of_their_version() -> None:
    """Of nodes also when their version is deleted before they are gone; of others nothing."""
    titles = {"uid": V}
    stream = EventStream(1)
    publisher = EventPublisher(stream, lambda key: titles.get(key, ""))
    begin = stream.create_id()
    publisher.on_scaling_event(SPEC, ScalingEvent(0.0, 1, "1 node: a request waits"))
    node = Node("7", "uid", "", memory(1))
    other = Node("8", "else", "", memory(1))
    for one in (node, other):
        publisher.on_node_changed(one)
    titles.clear()
    node.state = NodeState.READY
    publisher.on_node_changed(node)
    node.state, node.reason = NodeState.GONE, "killed"
    publisher.on_node_changed(node)
    publisher.on_node_changed(other)

    told = [(event.kind.value, orjson.loads(event.data)) for event in stream.read_after(begin)]
    assert all(fields.pop("time") and fields.pop("version") == V for _, fields in told)
    assert told == [
        ("scaling", {"nodes": 1, "reason": "1 node: a request waits"}),
        ("node", {"node": "7", "state": "starting", "forked": False}),
        ("node", {"node": "7", "state": "ready", "forked": False}),
        ("node", {"node": "7", "state": "gone", "forked": False, "reason": "killed"}),
    ]
