"""Figures and addresses as pages write them, and parts that many visitors share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.responses import Response

from serving.gateway.console.charts.line_charts import draw_chart
from serving.gateway.console.pages.overview import PilotRow
from serving.gateway.console.rendering import (
    PageRenderer,
    SharedPart,
    SharedPartResponse,
    build_url,
    format_bytes,
    format_rate,
    format_seconds,
    iterate_in_turns,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 40, "3.0 TiB")],
)
def test_bytes(size: float | None, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.00024, "240 µs"),
        (0.00312, "3.12 ms"),
        (2.5, "2.5 s"),
        (245, "4 min 5 s"),
        (3600, "1 h"),
        (90061, "1 d 1 h 1 min 1 s"),
    ],
)
def test_seconds(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(None, "-"), (0, "0"), (0.25, "0.25"), (12.34, "12.3"), (1234, "1,234")]
)
def test_rate(rate: float | None, text: str) -> None:
    assert format_rate(rate) == text


def test_names_in_addresses_are_quoted_and_queries_stay() -> None:
    assert build_url('/projects/a b"<') == "/console/projects/a%20b%22%3C"
    assert build_url("/x?next=%2Fy") == "/console/x?next=%2Fy"


class SharedList:
    """A shared part with pilots, and how often it was read."""

    def __init__(self) -> None:
        self.pilots: list[PilotRow] = []
        self.basis: object = "first"
        self.reads = 0

    async def read(self) -> Mapping[str, Any]:
        self.reads += 1
        return {"taken": 0, "free": 1, "limit": 0, "pilots": list(self.pilots), "ready_pilots": 0}

    async def show(self, renderer: PageRenderer, rights: str = "") -> Response:
        part = SharedPart("_resources.html", rights, self.basis, self.read)
        response = SharedPartResponse(part)
        await renderer.render_response(response)
        return response


def test_a_shared_part_is_made_once_a_second_for_all_with_the_same_rights() -> None:
    async def main() -> None:
        seconds = [0.0]
        shared, renderer = SharedList(), PageRenderer("static/x", lambda: seconds[0])
        first, *others = await asyncio.gather(*(shared.show(renderer) for _ in range(20)))
        assert shared.reads == 1
        assert {bytes(one.body) for one in others} == {bytes(first.body)}
        await shared.show(renderer, "others")
        assert shared.reads == 2
        # Too soon, and then late enough for what has changed.
        shared.pilots.append(PilotRow("<m>", "failed", 0, "&"))
        seconds[0] = 0.9
        assert (await shared.show(renderer)).headers["etag"] == first.headers["etag"]
        seconds[0] = 1.1
        changed = await shared.show(renderer)
        assert changed.headers["etag"] != first.headers["etag"]
        assert b"&lt;m&gt;" in changed.body
        assert shared.reads == 3
        # Another catalog is looked at at once.
        shared.basis = "second"
        await shared.show(renderer)
        assert shared.reads == 4

    asyncio.run(main())


def test_others_get_their_turn_while_a_long_list_is_read() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def read() -> None:
            async for item in iterate_in_turns("abcde", 2):
                seen.append(item)  # noqa: PERF401  one at a time is what is tested

        reading = asyncio.create_task(read())
        while not reading.done():
            seen.append("other")
            await asyncio.sleep(0)
        assert seen == ["other", "a", "b", "other", "c", "d", "other", "e"]

    asyncio.run(main())


def test_what_was_shared_with_few_is_forgotten_when_there_are_many_kinds_of_rights() -> None:
    async def main() -> None:
        shared, renderer = SharedList(), PageRenderer("static/x")
        for number in range(200):
            await shared.show(renderer, str(number))
        assert len(renderer._cached) == 64

    asyncio.run(main())


def test_curves_of_metrics_are_drawn_with_their_names_as_text() -> None:
    chart = draw_chart("<b>loss", {"<i>train": [(1, 0.25), (2, 0.5)]})
    renderer = PageRenderer("static")
    text = str(renderer.render("_metric_curves.html", {"charts": [chart], "project": "p", "id": "j"}).text)
    assert "&lt;b&gt;loss" in text
    assert "&lt;i&gt;train 0.5" in text
    assert "<i>" not in text
    assert '<th scope="row">2</th>' in text
