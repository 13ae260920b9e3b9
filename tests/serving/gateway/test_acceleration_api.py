"""serving.gateway.api.introspection.acceleration"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from serving import acceleration_record
from serving.acceleration_record import (
    PLAIN_STRATEGY,
    AccelerationKey,
    AccelerationRecord,
    CandidateOutcome,
    RecordLocation,
    RowRange,
)
from serving.gateway.api.introspection.acceleration import AccelerationApi
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import VersionRecord
from serving.names import VersionName
from serving.resources import Version

KEY = AccelerationKey("digest", "libraries", "processor")
NAME = VersionName("p", "m", "v")
FAST = RowRange(rows=1, way="one", seconds=1e-5, plain_seconds=1e-4)
SLOW = RowRange(rows=256, way=PLAIN_STRATEGY, seconds=1e-3, plain_seconds=1e-3)
TRIED = (CandidateOutcome(name="one"), CandidateOutcome(name="two", refused="it differs"))


@dataclass
class FakeDeployment:
    """Knows one place, or none."""

    place: RecordLocation | None
    is_acceleration_enabled: bool = True

    def locate_acceleration_record(self, _: VersionRecord) -> RecordLocation | None:
        return self.place


def told(deployment: FakeDeployment) -> Mapping[str, Any]:
    record = VersionRecord(name=NAME, uid="u", version=Version(name="v"))
    api = AccelerationApi(cast(VersionDeployer, deployment), lambda: CatalogState(versions={NAME: record}))
    path = "/acceleration/projects/{project:str}/models/{model:str}/versions/{version:str}"
    app = Starlette(routes=[Route(path, api.get)])

    async def ask() -> dict[str, Any]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            answer: dict[str, Any] = (await client.get(f"/acceleration/{NAME}")).json()
            return answer

    return asyncio.run(ask())


def test_the_way_of_each_range_and_what_it_gains(tmp_path: Path) -> None:
    acceleration_record.write_record(
        tmp_path, AccelerationRecord(key=KEY, tried=TRIED, ranges=(FAST, SLOW), seconds=0.2)
    )

    assert told(FakeDeployment(RecordLocation(str(tmp_path), KEY))) == {
        "version": "projects/p/models/m/versions/v",
        "way": "one, plain",
        "ranges": [
            {"rows": 1, "way": "one", "milliseconds": 0.01, "plainMilliseconds": 0.1, "gain": 10.0},
            {"rows": 256, "way": "plain", "milliseconds": 1.0, "plainMilliseconds": 1.0, "gain": 1.0},
        ],
        "refused": [{"way": "two", "reason": "it differs"}],
        "studySeconds": 0.2,
    }


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (None, "The model has not been studied yet; a node does it in the background."),
        (
            AccelerationRecord(key=AccelerationKey("digest", "others", "processor"), ranges=(FAST,)),
            "The model was studied with other",
        ),
        (
            AccelerationRecord(key=KEY, ranges=(FAST,), withdrawn="row 7"),
            "A faster way was wrong for a request: row 7",
        ),
        (AccelerationRecord(key=KEY, failure="The verification failed."), "The verification failed."),
        (AccelerationRecord(key=KEY, ranges=(SLOW,)), "No other way was proven and faster."),
    ],
)
def test_why_the_plain_path_serves(tmp_path: Path, verdict: AccelerationRecord | None, reason: str) -> None:
    if verdict is not None:
        acceleration_record.write_record(tmp_path, verdict)
    found = told(FakeDeployment(RecordLocation(str(tmp_path), KEY)))

    assert found["way"] == PLAIN_STRATEGY
    assert found["reason"].startswith(reason)


def test_where_there_is_no_place_for_a_verdict() -> None:
    assert told(FakeDeployment(None))["reason"] == "Nothing is known of the faster ways of user code."
    assert told(FakeDeployment(None, False))["reason"] == "It is switched off (setting acceleration)."
