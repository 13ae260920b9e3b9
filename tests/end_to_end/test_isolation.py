"""What the code of a model gets to see and to take, where it may come from, and how its time is told."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end import models
from tests.server import Server, running_server, until
from tests.serving.gateway.collector import Collector, collecting

MODEL = "projects/isolation/models/m"
ROUTINE = f"{MODEL}/versions/routine"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MIB = 1 << 20

# Does what its instances say.
CURIOUS = dedent(
    """
    import os, resource, time
    from pathlib import Path

    class Curious:
        def predict(self, instances, **kwargs):
            return [getattr(self, instance.split()[0])(*instance.split()[1:]) for instance in instances]

        def environment(self):
            return dict(os.environ)

        def ready(self):
            return "yes"

        def take(self, mebibytes):
            self.taken = os.urandom(1 << 20) * int(mebibytes)
            time.sleep(30)

        @classmethod
        def from_path(cls, model_dir):
            made = cls()
            if (Path(model_dir) / "greedy.txt").exists():
                made.take(600)
            return made
    """
)

SECRETS = {
    "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere/key.json",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "OTEL_EXPORTER_OTLP_HEADERS": "x-token=secret",
    "PILOTLIGHT_NODE_ENVIRONMENT": "TESTS_STATE_DIR,ALLOWED",
    "ALLOWED": "told",
}


@dataclass(frozen=True)
class World:
    """A server, the folder that it trusts, and where its traces go."""

    server: Server
    trusted: Path
    collector: Collector

    def routine(self, folder: str, **files: str) -> dict[str, Any]:
        """The fields of a version with the curious routine."""
        model = self.trusted / folder
        model.mkdir()
        for name, text in files.items():
            (model / f"{name}.txt").write_text(text)
        package = models.wheel(self.trusted, "curious", "0.1", {"curious.py": CURIOUS})
        return {
            "deploymentUri": str(model), "predictionClass": "curious.Curious", "packageUris": [str(package)]
        }  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One version is there: the curious routine."""
    root = tmp_path_factory.mktemp("isolation")
    trusted = root / "trusted"
    trusted.mkdir()
    with (
        collecting() as collector,
        running_server(
            root / "state",
            *("--trusted-sources", str(trusted)),
            *("--node-memory-bytes", str(300 * MIB)),
            *("--otel-endpoint", collector.endpoint),
            *("--otel-sample", "0"),
            environment=SECRETS,
        ) as server,
    ):
        world = World(server, trusted, collector)
        server.create_model(MODEL)
        server.create_version(ROUTINE, **world.routine("plain", model="any"))
        yield world
        assert server.stop() == 0


def test_user_code_finds_no_secret_in_its_environment(world: World) -> None:
    """Neither credentials nor settings of the server; what is harmless, and what it is given by name."""
    [seen] = world.server.predict(ROUTINE, ["environment"]).json["predictions"]

    assert seen["ALLOWED"] == "told"
    assert {"PATH", "HOME", "create_version_request"} <= seen.keys()
    assert not [name for name in seen if re.match("GOOGLE_|AWS_|OTEL_|PILOTLIGHT_|STORAGE_", name)]


@pytest.mark.parametrize(
    "fields",
    [
        {"deploymentUri": "gs://elsewhere/model"},
        {"deploymentUri": "{trusted}/../elsewhere"},
        {"deploymentUri": "{trusted}-evil/model"},
        {"deploymentUri": "{trusted}/plain", "packageUris": ["/elsewhere/curious-0.1.tar.gz"]},
    ],
)
def test_what_is_not_trusted_is_refused(world: World, fields: dict[str, Any]) -> None:
    """At once, with the setting's name; no version is left behind."""
    body = json.loads(json.dumps({"name": "evil", **fields}).replace("{trusted}", str(world.trusted)))
    reply = world.server.call("POST", f"{MODEL}/versions", json=body)

    assert (reply.status, reply.error["status"]) == (400, "FAILED_PRECONDITION")
    assert "setting trusted_sources" in reply.error["message"]
    assert world.server.call("GET", f"{MODEL}/versions/evil").status == 404


def test_a_job_may_load_trusted_models_only(world: World) -> None:
    """A model directory given by its URI runs code as a version does."""
    given = {
        "uri": "/elsewhere/model",
        "dataFormat": "JSON",
        "inputPaths": ["/elsewhere/in"],
        "outputPath": "/elsewhere/out",
        "region": "us-central1",
    }
    body = {"jobId": "evil", "predictionInput": given}
    reply = world.server.call("POST", "projects/isolation/jobs", json=body)

    assert (reply.status, reply.error["status"]) == (400, "FAILED_PRECONDITION")
    assert "prediction_input.uri" in reply.error["message"]


def test_a_version_that_takes_too_much_memory_says_so(world: World) -> None:
    """It fails with the reason; the server and the other versions live."""
    server = world.server
    version = f"{MODEL}/versions/greedy"
    operation = server.wait(server.begin_version(version, **world.routine("greedy", greedy="yes")))

    assert "may take 300 MiB (setting node_memory_bytes)" in operation["error"]["message"]
    assert "node_memory_bytes" in server.call("GET", version).json["errorMessage"]
    assert server.predict(ROUTINE, ["ready"]).json == {"predictions": ["yes"]}


def test_a_request_that_takes_too_much_memory_fails_alone(world: World) -> None:
    """The next one has another node."""
    reply = world.server.predict(ROUTINE, ["take 600"])

    assert reply.status == 500
    assert "setting node_memory_bytes" in reply.error["message"]
    assert world.server.predict(ROUTINE, ["ready"]).json == {"predictions": ["yes"]}


def test_the_state_is_nobody_elses(world: World) -> None:
    """Neither the folder nor what it remembers."""
    state = world.server.state_dir

    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "state.db").stat().st_mode) == 0o600


def test_time_is_told_by_phase_and_outlives_nodes(world: World) -> None:
    """The node's phases come from the node itself; a killed one takes nothing along."""
    assert world.server.predict(ROUTINE, ["ready"]).status == 200
    before = _counts(world.server)
    for _ in range(3):
        assert world.server.predict(ROUTINE, ["ready"]).status == 200
    killed = set(world.server.nodes(ROUTINE))
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    # The next one may be there before anybody looks.
    until(lambda: killed.isdisjoint(world.server.nodes(ROUTINE)), "the node is gone")
    after = _counts(world.server)

    for phase in ("total", "gateway", "parse", "wait", "infer", "encode"):
        assert after[phase] - before[phase] == 3, phase


def test_a_prediction_is_traced_from_the_gateway_to_the_model(world: World) -> None:
    """In the trace of its caller; the answer does not tell the client more than usual."""
    assert world.server.predict(ROUTINE, ["ready"]).status == 200  # there is a node
    traceparent = f"00-{TRACE}-00f067aa0ba902b7-01"
    reply = world.server.predict(ROUTINE, ["ready"], headers={"traceparent": traceparent})
    assert reply.status == 200
    assert "server-timing" not in reply.headers
    spans = world.collector.trace(6)

    assert spans.keys() == {"projects.predict", "node", "parse", "wait", "infer", "encode"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
    assert spans["infer"].parent_span_id == spans["node"].span_id
    assert spans["node"].parent_span_id == spans["projects.predict"].span_id
    until(
        lambda: 'pilotlight_trace_spans_total{result="sent"} 6.0' in _metrics(world.server), "all are counted"
    )


def _metrics(server: Server) -> str:
    return server.http.get(f"{server.url}/metrics").text


def _counts(server: Server) -> dict[str, float]:
    """Of the routine's requests, by phase."""
    return {
        sample.labels["phase"]: sample.value
        for family in text_string_to_metric_families(_metrics(server))
        for sample in family.samples
        if sample.name == "pilotlight_prediction_phase_seconds_count"
        and sample.labels["version"] == "routine"
    }
