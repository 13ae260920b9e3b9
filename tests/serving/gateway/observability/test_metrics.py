from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.errors import NodeError, QueueFullError, TooLateError
from autoscaler.placement.server_load import ServerLoad
from autoscaler.pools import NodeState, PilotState
from serving.gateway.observability import metrics
from serving.gateway.observability.metric_definitions import (
    METRIC_DEFINITIONS,
    ServerCounts,
    SuggestionCounts,
)
from serving.gateway.observability.request_log import LogCounts
from serving.latency_histograms import NODE_PHASES, LatencyHistograms, as_cells
from serving.logs.journal.file_format import LogKind
from serving.logs.journal.position import JournalCounts
from serving.resources import JobState
from tests.serving.gateway.catalog.study_world import StudyWorld
from tests.serving.gateway.world import World, run

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"
V1 = {"project": "p", "model": "m", "version": "v1"}

Scrape = dict[str, dict[tuple[tuple[str, str], ...], float]]


async def scrape(world: World) -> Scrape:
    """All samples by name and labels, as Prometheus would read them."""
    found: Scrape = {}
    for metric in text_string_to_metric_families((await world.metrics.render_text()).decode()):
        for sample in metric.samples:
            series = found.setdefault(sample.name, {})
            assert key(**sample.labels) not in series
            series[key(**sample.labels)] = sample.value
    return found


def key(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def test_the_page_has_every_metric() -> None:
    """In the order, with the type, the labels and the words of /metrics."""
    row = re.compile(r"^\| `(pilotlight_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)
    scraped = [(name, kind, labels, text) for name, kind, labels, text in row.findall(PAGE.read_text())]

    assert scraped == [
        (metric.name, metric.kind, ", ".join(f"`{label}`" for label in metric.labels), metric.help)
        for metric in METRIC_DEFINITIONS
    ]


def test_every_metric_asked_for_on_the_page_is_there() -> None:
    """The queries name no other."""
    named = set(re.findall(r"pilotlight_\w+", PAGE.read_text()))

    assert {name.removesuffix("_bucket").removesuffix("_sum") for name in named} == {
        metric.name for metric in METRIC_DEFINITIONS
    }


def test_a_scrape_is_what_the_table_says() -> None:
    """Names, types, labels and help of each family, once all of them have values."""

    async def main(world: World) -> None:
        spec = world.add("m/v1")
        await world.ask(spec)
        await world.ask(spec)  # too many wait
        world.pool.ready(world.pool.nodes("m/v1")[0])
        world.add_job("j", JobState.SUCCEEDED, 5, 1)
        world.answered("m/v1")
        world.stats.get_or_create("m/v1").count_refusal(429, "version_concurrency")
        world.stats.api_calls["projects.models.list", 200] += 1
        world.spans = {"sent": 1, "failed": 0, "dropped": 2}
        world.audit = {"written": 3, "waiting": 1, "dropped": 0}
        world.logs = [LogCounts(LogKind.REQUESTS, "gs://bucket/logs", JournalCounts(9, 5, 3, 1))]
        by_name = {
            metric.name + ("_total" if metric.type == "counter" else ""): metric
            for metric in text_string_to_metric_families((await world.metrics.render_text()).decode())
        }

        assert by_name.keys() == {metric.name for metric in METRIC_DEFINITIONS}
        for metric in METRIC_DEFINITIONS:
            found = by_name[metric.name]
            assert (found.type, found.documentation) == (metric.kind, metric.help)
            for sample in found.samples:
                assert set(sample.labels) - {"le"} == set(metric.labels), metric.name

    run(main)


def test_jobs_and_what_came_of_their_records() -> None:
    """Every state of a project that has jobs is told; counts are those of jobs that have ended."""

    async def main(world: World) -> None:
        assert not (await scrape(world)).get("pilotlight_jobs")
        world.add_job("a", JobState.SUCCEEDED, 5, 1)
        world.add_job("b", JobState.FAILED, 2, 7)
        world.add_job("c", JobState.RUNNING, 100, 100)
        found = await scrape(world)

        states = {dict(labels)["state"]: value for labels, value in found["pilotlight_jobs"].items()}
        assert states.keys() == {state.value for state in JobState}
        assert {state: value for state, value in states.items() if value} == {
            "SUCCEEDED": 1, "FAILED": 1, "RUNNING": 1
        }  # fmt: skip
        assert found["pilotlight_job_records_total"] == {
            key(project="p", result="predicted"): 7,
            key(project="p", result="refused"): 8,
        }

    run(main)


def test_trials_and_suggestions() -> None:
    """Trials by their state; suggestions by what came of them, and how long they took."""

    async def main(world: World) -> None:
        studies = StudyWorld()
        studies.request()
        studies.suggest("me", 3)
        studies.complete(2, infeasible=True)
        world.state = replace(world.state, studies=studies.state.studies)
        world.suggestions = SuggestionCounts({"answered": 3, "failed": 1}, 0.5)
        found = await scrape(world)

        assert found["pilotlight_trials"] == {
            key(project="p", state="ACTIVE"): 2,
            key(project="p", state="COMPLETED"): 1,
        }
        assert found["pilotlight_suggestions_total"] == {key(result="answered"): 3, key(result="failed"): 1}
        assert found["pilotlight_suggestion_seconds_total"] == {key(): 0.5}

    run(main)


def test_nodes_and_requests_as_they_are_at_the_scrape() -> None:
    """Ready and starting nodes, what runs and what waits, and what it costs."""

    async def main(world: World) -> None:
        spec = world.add("m/v1")
        await world.ask(spec)
        world.pool.ready(world.pool.nodes("m/v1")[0])
        await world.ask(spec)
        world.pool.start("m/v1")
        before = await scrape(world)
        after = await scrape(world)

        assert before["pilotlight_nodes_desired"] == {key(**V1): 1}
        assert before["pilotlight_nodes"] == {
            key(**V1, state="ready"): 1,
            key(**V1, state="starting"): 1,
            key(**V1, state="draining"): 0,
        }
        assert before["pilotlight_requests_running"] == {key(**V1): 1}
        assert before["pilotlight_requests_queued"] == {key(**V1): 1}
        assert before["pilotlight_wakeups_total"] == {
            key(**V1, result="ready"): 1,
            key(**V1, result="failed"): 0,
        }
        memory = before["pilotlight_node_memory_bytes"]
        assert memory[key(**V1, kind="proportional")] >= memory[key(**V1, kind="private")] > 1 << 20
        for counter in ("pilotlight_node_seconds_total", "pilotlight_request_seconds_total"):
            assert 0 < before[counter][key(**V1)] < after[counter][key(**V1)]

    run(main)


def test_starts_are_told_by_phase() -> None:
    """Loading and warming as the node reports them, the rest is the start of its process."""

    async def main(world: World) -> None:
        world.add("m/v1")
        world.pool.ready(world.pool.start("m/v1"), load=0.3, warm=0.15, total=0.5)
        await scrape(world)
        world.pool.ready(world.pool.start("m/v1"), load=0.3, warm=0.15, total=0.5)
        world.pool.forked = False
        world.pool.ready(world.pool.start("m/v1"), load=1.0, warm=1.0, total=3.0)
        scraped = await scrape(world)

        sums = scraped["pilotlight_cold_start_seconds_sum"]
        for phase, forked, cold in (("start", 0.1, 1), ("load", 0.6, 1), ("warm", 0.3, 1), ("total", 1, 3)):
            assert sums[key(**V1, phase=phase, how="forked")] == pytest.approx(forked)
            assert sums[key(**V1, phase=phase, how="cold")] == pytest.approx(cold)
        buckets = scraped["pilotlight_cold_start_seconds_bucket"]
        assert buckets[key(**V1, phase="total", how="forked", le="0.2")] == 0
        assert buckets[key(**V1, phase="total", how="forked", le="0.5")] == 2
        assert buckets[key(**V1, phase="total", how="cold", le="+Inf")] == 1
        forked_starts, cold_starts = world.metrics.summarize_starts("m/v1")
        assert (forked_starts.how, forked_starts.count, cold_starts.count) == ("forked", 2, 1)
        expected = {"start": 0.05, "load": 0.3, "warm": 0.15, "total": 0.5}
        assert forked_starts.seconds == pytest.approx(expected)
        assert world.metrics.summarize_starts("m/v2") == ()

    run(main)


def test_predictions_by_status_and_phase() -> None:
    """As the gateway saw them, and the node."""

    async def main(world: World) -> None:
        world.add("m/v1")
        node = world.pool.start("m/v1")
        infer = LatencyHistograms(len(NODE_PHASES), as_cells(node.shared.counters))
        world.answered("m/v1")
        world.answered("m/v1", 500)
        infer.record(NODE_PHASES.index("infer"), 0.000_07)
        world.stats.get_or_create("m/v1").count_refusal(429, "version_concurrency")
        for _ in range(2):
            scraped = await scrape(world)

            assert scraped["pilotlight_predictions_total"] == {
                key(**V1, code=code): 1 for code in ("200", "429", "500")
            }
            assert scraped["pilotlight_limited_predictions_total"] == {
                key(**V1, setting="version_concurrency"): 1
            }
            assert scraped["pilotlight_prediction_request_bytes_total"] == {key(**V1): 20}
            assert scraped["pilotlight_prediction_response_bytes_total"] == {key(**V1): 40}
            counts = scraped["pilotlight_prediction_phase_seconds_count"]
            assert counts == {
                key(**V1, phase="total"): 2, key(**V1, phase="gateway"): 2, key(**V1, phase="infer"): 1
            }  # fmt: skip
            buckets = scraped["pilotlight_prediction_phase_seconds_bucket"]
            assert buckets[key(**V1, phase="infer", le="5e-05")] == 0
            assert buckets[key(**V1, phase="infer", le="0.0001")] == 1
            assert buckets[key(**V1, phase="infer", le="+Inf")] == 1
            if node.state is not NodeState.GONE:
                world.pool.end(node)

    run(main)


def test_logs_are_told_as_they_were_while_the_disk_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape goes on without them, and asks only once."""
    monkeypatch.setattr(metrics, "_LOG_COUNTS_TIMEOUT", 0.02)
    there = {"kind": "requests", "destination": "gs://bucket/logs"}

    async def main(world: World) -> None:
        world.logs = [LogCounts(LogKind.REQUESTS, "gs://bucket/logs", JournalCounts(9, 5, 3, 1))]
        assert (await scrape(world))["pilotlight_log_records_waiting"] == {key(**there): 3}
        world.disk.clear()
        world.logs = [LogCounts(LogKind.REQUESTS, "gs://bucket/logs", JournalCounts(9, 8, 0, 1))]
        tasks = len(asyncio.all_tasks())
        for _ in range(3):
            assert (await scrape(world))["pilotlight_log_records_waiting"] == {key(**there): 3}
        assert len(asyncio.all_tasks()) == tasks + 1
        world.disk.set()
        scraped = await scrape(world)

        assert scraped["pilotlight_log_records_waiting"] == {key(**there): 0}
        assert scraped["pilotlight_log_records_total"] == {
            key(**there, result=result): count
            for result, count in (("sampled", 9), ("sent", 8), ("dropped", 1))
        }

    run(main)


def test_refused_requests_are_counted_by_reason() -> None:
    """Each time, and for the autoscaler's story too."""

    async def main(world: World) -> None:
        spec = world.add("m/v1")
        await world.ask(spec)
        refused = [await world.ask(spec), await world.ask(spec)]
        world.autoscaler.versions["m/v1"].starts.append((True, 5.0))
        hasty = await world.ask(world.add("m/v2"), seconds=60)
        world.autoscaler.versions["m/v2"].starts.append((True, 5.0))
        hasty.cancel()
        late = await world.ask(world.add("m/v2"), seconds=1)
        scraped = (await scrape(world))["pilotlight_refused_requests_total"]

        assert [type(task.exception()) for task in refused] == [QueueFullError, QueueFullError]
        assert isinstance(late.exception(), TooLateError)
        assert scraped == {
            key(**V1, reason="queue_full"): 2,
            key(**{**V1, "version": "v2"}, reason="too_late"): 1,
        }
        assert [one.count for one in world.autoscaler.versions["m/v1"].refusals] == [2]

    run(main)


def test_every_refusal_has_a_name() -> None:
    """Of all that can go wrong between a request and a node."""
    assert set(metrics._REFUSALS) == set(NodeError.__subclasses__())


def test_versions_that_are_gone_are_told_no_more() -> None:
    """Neither what they are nor what was counted of them; a new one of that name begins anew."""

    async def main(world: World) -> None:
        spec = world.add("m/v1")
        world.add("m/v2")
        for version in ("m/v1", "m/v2"):
            world.pool.end(world.pool.ready(world.pool.start(version)))
        await world.ask(spec)
        await world.ask(spec)
        world.answered("m/v1")
        world.remove("m/v1")
        scraped = await scrape(world)

        versions = {dict(labels).get("version") for series in scraped.values() for labels in series}
        assert versions == {"v2", None}
        assert "pilotlight_refused_requests_total" not in scraped
        world.add("m/v1")
        again = await scrape(world)
        assert all(dict(labels)["version"] == "v2" for labels in again["pilotlight_cold_start_seconds_count"])

    run(main)


def test_pilots() -> None:
    """Whether they are lit, and their memory."""

    async def main(world: World) -> None:
        scraped = await scrape(world)
        assert scraped["pilotlight_pilot_lit"] == {key(pilot="tabular"): 1}
        assert scraped["pilotlight_pilot_memory_bytes"][key(pilot="tabular", kind="private")] > 1 << 20

        for state in (PilotState.STARTING, PilotState.FAILED, PilotState.STOPPED):
            world.pool.running_pilots = [replace(world.pool.running_pilots[0], state=state, pid=None)]
            scraped = await scrape(world)
            assert scraped["pilotlight_pilot_lit"] == {key(pilot="tabular"): 0}
            assert "pilotlight_pilot_memory_bytes" not in scraped

    run(main)


def test_sleeping_versions_are_cheap() -> None:
    """Four series for each that was never used; what is long past is not put into words again."""

    async def main(world: World) -> None:
        for number in range(200):
            world.add(f"m/v{number}")
        scraped = await scrape(world)
        of_versions = [
            series for name, series in scraped.items() if "pilot_" not in name and "_server_" not in name
        ]
        assert sum(map(len, of_versions)) == 4 * 200

        for number in range(200):
            world.pool.end(world.pool.ready(world.pool.start(f"m/v{number}")))
            world.answered(f"m/v{number}")
        first = await _seconds(world)
        later = [await _seconds(world) for _ in range(5)]
        assert len((await scrape(world))["pilotlight_cold_start_seconds_count"]) == 4 * 200
        assert median(later) < first / 2

    run(main)


async def _seconds(world: World) -> float:
    start = time.process_time()
    await world.metrics.render_text()
    return time.process_time() - start


def test_the_load_of_the_server_is_told() -> None:
    """Of each resource, and of the one that is scarcer."""

    async def main(world: World) -> None:
        world.server_load = ServerLoad(memory=0.25, processors=1.5)
        scraped = await scrape(world)
        assert scraped["pilotlight_server_load"] == {(): 1.5}
        loads = scraped["pilotlight_server_resource_load"]
        assert loads == {key(resource="memory"): 0.25, key(resource="processors"): 1.5}

    run(main)


def test_how_many_servers_there_should_be_is_told() -> None:
    """By the server that decides it alone."""

    async def main(world: World) -> None:
        assert not (await scrape(world)).get("pilotlight_servers_desired")
        world.server_counts = ServerCounts(desired=3, errors={"patch": 2})
        scraped = await scrape(world)
        assert scraped["pilotlight_servers_desired"] == {(): 3}
        assert scraped["pilotlight_server_scaling_errors_total"] == {key(verb="patch"): 2}

    run(main)
