"""Viewers of the console: each opens the overview, and fetches its live parts as the page's script does.

    python -m loadtests.bench.load_clients.page_viewers URL COUNT SECONDS

prints one line of JSON: the parts that were fetched, those of them that had not changed, and the bytes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from html import unescape

import httpx
import uvloop

_LIVE_PART = re.compile(r'data-live="([^"]+)" data-every="([0-9.]+)"')
_NOT_MODIFIED = 304


async def watch_overview(client: httpx.AsyncClient, end: float, counts: Counter[str]) -> None:
    """Until the time `end` on `time.monotonic`. Raises httpx.HTTPError."""
    page = await client.get("/console/", headers={"accept": "text/html"})
    page.raise_for_status()
    parts = [(unescape(path), float(every)) for path, every in _LIVE_PART.findall(page.text)]
    await asyncio.gather(*(watch_part(client, path, every, end, counts) for path, every in parts))


async def watch_part(
    client: httpx.AsyncClient, path: str, every: float, end: float, counts: Counter[str]
) -> None:
    known: dict[str, str] = {}
    while time.monotonic() + every < end:
        await asyncio.sleep(every)
        answer = await client.get(path, headers={"x-console-part": "1", **known})
        counts["parts"] += 1
        counts["bytes"] += len(answer.content)
        if answer.status_code == _NOT_MODIFIED:
            counts["unchanged"] += 1
        else:
            answer.raise_for_status()
            known = {"if-none-match": answer.headers["etag"]}


async def run_viewers(url: str, count: int, seconds: float) -> Counter[str]:
    """Viewers do not come at the same moment: they are spread over two seconds."""
    end, counts = time.monotonic() + seconds, Counter[str]()

    async def view(number: int) -> None:
        await asyncio.sleep(2 * number / count)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await watch_overview(client, end, counts)

    await asyncio.gather(*map(view, range(count)))
    return counts


def main(url: str, count: int, seconds: float) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run_viewers(url, count, seconds))))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
