"""Pages about the server itself: settings, doctor, audit log."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
from pathlib import Path

import msgspec
import pytest

from serving.config import ServeConfig, load_sourced_settings
from serving.gateway.access.policy import ADMIN
from serving.gateway.app import Gateway
from serving.gateway.console import health_checks
from serving.gateway.console.visit import DONE_STATUS
from serving.gateway.control.placement.server_placement import ServerView
from serving.gateway.state.shared.membership import ScalingReport, ServerRecord
from tests.bounds import HANG_SECONDS
from tests.serving.gateway.console.world import Browser, World, run, visible_text

ANN = "user:ann@example.com"


def test_settings_say_where_they_came_from_and_keep_secrets(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        world.gateway._setting_sources = {
            "jobs": "PILOTLIGHT_JOBS",
            "batch_options": "/etc/p<b>.yaml: batch_options",
            "otel_endpoint": "--otel-endpoint",
        }
        async with world.browser() as browser:
            page = await browser.open("/settings")
            text = re.sub(r"\s+", " ", visible_text(page))
            assert "jobs changed 5 environment PILOTLIGHT_JOBS 2" in text
            assert "batch_options changed not shown file /etc/p<b>.yaml: batch_options -" in text
            assert "http://…@host:4318 flag --otel-endpoint" in text
            assert "opensesame" not in page
            assert re.search(r"max_body_bytes 32\.0 MiB \(33554432\) default (?!32)", text)
            # In groups, what differs first.
            places = ("Versions, jobs and operations Setting", "jobs changed", "deployments", "batch_options")
            assert sorted(places, key=text.index) == list(places)

    run(
        tmp_path,
        main,
        jobs=5,
        batch_options="--password=opensesame",
        otel_endpoint="http://me:opensesame@host:4318",
    )


def test_settings_are_found_by_words_and_by_what_differs(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:

            async def list_shown(query: str) -> list[str]:
                page = await browser.open(f"/settings?{query}")
                return re.findall(r'<th scope="row"><code>(\w+)</code>', page)

            names = [field.name for field in dataclasses.fields(ServeConfig)]
            assert sorted(await list_shown("")) == sorted(names)
            assert await list_shown("filter=HEADER+timeout") == ["header_timeout"]
            assert await list_shown("filter=--queue-jobs") == ["queue_jobs"]
            assert {"jobs", "state_dir", "access"} <= set(await list_shown("changed=yes"))
            assert "queue_jobs" not in await list_shown("changed=yes")
            assert "No setting matches." in await browser.open("/settings?filter=<b>")

    run(tmp_path, main, jobs=5)


def test_sources_are_flags_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("jobs: 3\nport: 1\nhost: localhost")
    monkeypatch.setenv("PILOTLIGHT_PORT", "2")
    loaded = load_sourced_settings(ServeConfig, {"host": "127.0.0.1", "tick": None}, file)
    assert loaded.sources == {"jobs": f"{file}: jobs", "port": "PILOTLIGHT_PORT", "host": "--host"}
    assert (loaded.values.jobs, loaded.values.port, loaded.values.host) == (3, 2, "127.0.0.1")


async def wait_for_end(browser: Browser) -> str:
    for _ in range(int(HANG_SECONDS * 10)):
        response = await browser.client.get("/console/doctor/results")
        if response.status_code == DONE_STATUS:
            return response.text
        await asyncio.sleep(0.1)
    raise AssertionError("the checks do not end")


def test_the_doctor_shows_what_is_wrong_first_with_what_to_do(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            assert "Nothing was checked" in await browser.open("/doctor")
            await browser.post("/doctor", {})
            text = visible_text(await wait_for_end(browser))
            assert text.index("the setting memory_bytes promises") < text.index("Lower memory_bytes")
            assert text.index("Lower memory_bytes") < text.index("processors may be used")
            assert "state folder" in text

    run(tmp_path, main, environment=dict(os.environ), memory_bytes=1 << 50)


def test_the_doctor_says_what_is_true_of_the_server_that_runs(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        async with world.browser() as browser:
            text = " ".join(visible_text(await browser.open("/doctor")).split())
            assert "Ready ok it takes requests" in text
            assert f"Changes ok written to {tmp_path}/state.db" in text
            assert "off: whoever reaches the address" in text
            assert f"process {os.getpid()}" in text
            await browser.post("/doctor", {})
            text = visible_text(await wait_for_end(browser))
            assert "state.db is whole" in text
            assert "A free port" not in text
            assert " yet" not in text

    run(tmp_path, main, environment=dict(os.environ), port=0)


def test_the_doctor_tells_of_the_servers_and_who_decides_on_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ScalingReport(
        wanted=3, reason="as many are needed", deployment="a/b", pods=2, error="It is away."
    )
    leader = ServerRecord(
        id="a", name="a:8080", host="127.0.0.1", port=8090, machine="m", folder="/state",
        memory_bytes=1 << 30, processors=2, weight=16, scaling=report,
    )  # fmt: skip
    silent = msgspec.structs.replace(leader, id="b", name="b:8080")
    views = [ServerView(leader, 0.1, True, None), ServerView(silent, 9.0, False, False)]
    monkeypatch.setattr(Gateway, "_list_servers", lambda _: views)

    async def main(world: World) -> None:
        async with world.browser() as browser:
            text = " ".join(visible_text(await browser.open("/doctor")).split())
            assert "Servers a:8080, b:8080 (silent)" in text
            assert f"Number of servers error a:8080 decides: {report.describe()}" in text
            assert text.count("decides") == 1

    run(tmp_path, main)


def test_a_server_that_starts_or_stops_is_no_error(tmp_path: Path) -> None:
    """Only one that cannot do its work is shown in red."""

    async def main(world: World) -> None:
        gateway = world.gateway
        async with world.browser() as browser:

            async def read_readiness() -> str:
                page = await browser.open("/doctor/server")
                [found] = re.findall(r"<dt>Ready</dt><dd>(.*?)</dd>", page)
                return str(found)

            pilots = asyncio.Event()
            gateway._pilot_start = asyncio.create_task(pilots.wait())  # type: ignore[arg-type]
            starting = await read_readiness()
            assert 'data-state="starting"' in starting
            assert "its pilots import the frameworks" in starting
            pilots.set()
            await gateway._pilot_start
            assert 'data-state="ok"' in await read_readiness()

            gateway.set_accept_trouble("There are no file descriptors.")
            assert 'data-state="failing"' in await read_readiness()
            gateway.set_accept_trouble("")
            gateway.announce_stop()
            assert 'data-state="stopping"' in await read_readiness()

    run(tmp_path, main)


def test_every_page_says_while_changes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And why; it goes by itself."""
    monkeypatch.setattr(health_checks, "_WRITE_CHECK_SECONDS", 0.02)

    async def main(world: World) -> None:
        async with world.browser() as browser, asyncio.timeout(HANG_SECONDS):

            async def wait_for_page(*, refused: bool) -> None:
                while True:
                    page = await browser.open("/projects/p/jobs")
                    if ("was removed or replaced" in page) is refused:
                        return
                    await asyncio.sleep(0.03)

            assert "Changes are refused" not in await browser.open("/write-trouble")
            aside = (tmp_path / "state.db").rename(tmp_path / "aside")
            await wait_for_page(refused=True)
            assert "Changes are refused" in await browser.open("/write-trouble")
            aside.replace(tmp_path / "state.db")
            await wait_for_page(refused=False)

    run(tmp_path, main)


def test_the_audit_log_is_shown_newest_first_and_filtered(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_modelOwner=ANN)
        # Nobody waits for the entry of a refused call: it is there when those of later calls are.
        await world.api.call(ANN, "POST", "/v1/projects/other/models", {"name": "x"}, 403)
        for model in ("one", "two"):
            await world.api.call(ANN, "POST", "/v1/projects/p/models", {"name": model})
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ADMIN.principal))
            text = visible_text(await browser.open("/audit"))
            assert text.index("projects/p/models/two") < text.index("projects/p/models/one")
            assert "SetIamPolicy" in text
            assert "UNKNOWN" not in text
            text = visible_text(await browser.open("/audit?principal=ann%40example.com&resource=models/one"))
            assert "models/one" in text
            assert "models/two" not in text
            assert "PERMISSION_DENIED" in visible_text(await browser.open("/audit?resource=projects/other"))
            assert "Nothing was found" in await browser.open("/audit?until=2020-01-01")
            assert "YYYY-MM-DD" in await browser.open("/audit?until=soon", 400)
            await browser.open("/audit?position=x", 400)

    run(tmp_path, main, access="on")


def test_without_access_control_anyone_did_it(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.client.post("/v1/projects/p/models", json={"name": "m"})
        async with world.browser() as browser:
            assert "Access control is off: who calls is not known." in visible_text(
                await browser.open("/audit")
            )

    run(tmp_path, main)


def test_owners_of_a_project_see_its_part_of_the_audit_log(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        await world.api.bind("projects/p", owner=ANN)
        await world.api.call(ADMIN.principal, "POST", "/v1/projects/q/models", {"name": "x"})
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ANN))
            text = visible_text(await browser.open("/audit?resource=projects"))
            assert "SetIamPolicy" in text
            assert "projects/q" not in text
            await browser.open("/settings", 403)
            await browser.open("/doctor", 403)

    run(tmp_path, main, access="on")
