"""Bodies that are nearly right, sent to a real server: nodes live on, and answer 4xx to what they refuse."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

import psutil
import pytest

from tests.conftest import Report
from tests.end_to_end.conftest import ZOO
from tests.fuzz import making
from tests.server import Server

# What the models take, by the names of `making.LIKE`. Those with code of users fail as that does.
KINDS = {"sklearn": "rows", "xgboost": "rows", "tensorflow": "pairs"}
BODIES = 200


@pytest.mark.parametrize("bodies", [BODIES, pytest.param(20_000, marks=[pytest.mark.soak])])
@pytest.mark.parametrize("kind", KINDS)
def test_no_body_harms_a_node(
    server: Server, zoo: dict[str, dict[str, Any]], report: Report, kind: str, bodies: int
) -> None:
    """Each is answered with predictions or with a 4xx, by one and the same node, which does not grow."""
    name = f"{ZOO}/versions/{kind}"
    seen: Counter[int] = Counter()

    def send(number: int) -> None:
        body = making.body(Random(f"node {kind} {number}"), KINDS[kind])
        reply = server.call("POST", f"{name}:predict", content=body)
        seen[reply.status] += 1
        assert reply.status == 200 or 400 <= reply.error["code"] < 500, (body, reply.json)

    for number in range(bodies // 10):
        send(number)
    (node,) = server.nodes(name)
    before = psutil.Process(node).memory_full_info().uss
    for number in range(bodies // 10, bodies):
        send(number)
    grown = psutil.Process(node).memory_full_info().uss - before

    report(f"{bodies} bodies for {kind}: {json.dumps(seen)}; its node has grown by {grown >> 10} KiB")
    assert set(seen) <= {200, 400}
    assert seen[200] > bodies // 10
    assert server.nodes(name) == [node]
    assert grown < 32 << 20
