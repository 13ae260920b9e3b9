"""What the page of a version says besides its state; a version with nodes is in test_console_pages."""

from __future__ import annotations

from pathlib import Path

import orjson

from serving.errors import Unavailable
from serving.gateway.access.policy import ADMIN
from serving.model_schema import TensorSpec
from tests.serving.gateway.console.pages.test_versions import PAGE, store_ready_version
from tests.serving.gateway.console.world import World, run, visible_text

ANN = "user:ann@example.com"
EVIL = "<script>document.title='owned'</script>\x1b[31m\u202e" + "x" * 5000
NUMBER = TensorSpec("n", "FP32", (-1,))


def write_log(folder: Path, *messages: str) -> None:
    day = folder / "logs" / "console" / "p" / "m" / "v1" / "dt=2030-01-02"
    day.mkdir(parents=True, exist_ok=True)
    entries = [
        {"time": f"2030-01-02T00:00:0{number}Z", "severity": "INFO", "message": message}
        | {"model": "m", "model_version": "v1"}
        for number, message in enumerate(messages)
    ]
    (day / "000001-0.jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in entries))


def test_a_version_that_has_done_nothing_says_so(tmp_path: Path) -> None:
    store_ready_version(tmp_path, NUMBER)

    async def main(world: World) -> None:
        async with world.browser() as browser:
            page = visible_text(await browser.open(PAGE))
            assert "No node of it has been started" in page
            assert "By the model's own library. The model has not been studied yet" in " ".join(page.split())
            assert "has no console log: only models created with --enable-console-logging" in page
            assert "The requests of projects/p/models/m/versions/v1 are not logged" in visible_text(
                await browser.open(f"{PAGE}?log=requests")
            )
            part = await browser.open(f"{PAGE}/log?log=access", 286)
            assert "data-live" not in part
            assert "No node of it" in await browser.open(f"{PAGE}/phases")
            assert "own library" in await browser.open(f"{PAGE}/acceleration")

    run(tmp_path, main)


def test_lines_of_a_log_are_text(tmp_path: Path) -> None:
    """The newest first, cut, with what is invisible written out."""
    store_ready_version(tmp_path, NUMBER)
    write_log(tmp_path, "first", EVIL)

    async def main(world: World) -> None:
        async with world.browser() as browser:
            part = await browser.open(f"{PAGE}/log")
            assert "<script>" not in part
            text = visible_text(part)
            assert "<script>document.title='owned'</script>\\x1b[31m\\u202ex" in text
            assert text.index("owned") < text.index("2030-01-02T00:00:00Z INFO first")
            assert len(part) < 4000

    run(tmp_path, main)


def test_only_who_may_read_logs_sees_them(tmp_path: Path) -> None:
    store_ready_version(tmp_path, NUMBER)
    write_log(tmp_path, "a secret")

    async def main(world: World) -> None:
        await world.api.bind("projects/p", ml_viewer=ANN)
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ANN))
            assert "version-log" not in await browser.open(PAGE)
            await browser.open(f"{PAGE}/log", 403)
        async with world.browser() as browser:
            await browser.sign_in(await world.api.token(ADMIN.principal))
            assert "a secret" in await browser.open(PAGE)

    run(tmp_path, main, access="on")


def test_requests_that_waited_are_listed_with_the_reason(tmp_path: Path) -> None:
    """On the page as by the API, and where the time of answers goes."""
    store_ready_version(tmp_path, NUMBER)

    async def main(world: World) -> None:
        (record,) = world.gateway._catalog.state.versions.values()
        async with world.browser() as browser:
            assert "No request has waited for a node" in await browser.open(PAGE)
            world.gateway._waits.record_refusal(record.uid, (2.0, 0.0, ()), Unavailable(EVIL), "id-1")
            world.gateway._prediction_stats.get_or_create(record.uid).count_answer(
                (0.02, 0.018, ()), 200, 1, 1
            )
            for path in (PAGE, f"{PAGE}/waits"):
                page = await browser.open(path)
                assert "<script>document" not in page
                text = visible_text(page)
                assert "Waited 2 s, and no node answered. <script>document" in text
                assert "id-1" in text
            assert (
                "Of 20 ms that an answer of a ready node took on average since the server was started, "
                in (visible_text(await browser.open(f"{PAGE}/state")))
            )
        found = (await world.api.client.get("/waits/projects/p/models/m/versions/v1")).json()
        (wait,) = found["waits"]
        assert (wait["requestId"], wait["status"], wait["ms"]) == ("id-1", 503, 2000.0)
        assert wait["phasesMs"] == {"in_vain": 2000.0}
        assert wait["summary"].startswith("Waited 2 s, and no node answered.")
        assert (await world.api.client.get("/waits/projects/p/models/m/versions/v2")).status_code == 404

    run(tmp_path, main)
