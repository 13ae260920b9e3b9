"""The audit log is read newest first, in pages, without reading all of it."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from serving.gateway.audit.log_folder import AuditQuery
from serving.gateway.audit.log_reader import AuditPage, AuditPosition, read_newest

DAY = datetime.date(2030, 1, 2)


def entry(number: int, *, call: str = "", first: bool = False, resource: str = "projects/p/models/m") -> Any:
    made: dict[str, Any] = {
        "timestamp": f"2030-01-02T00:00:{number % 60:02}Z",
        "insertId": str(number),
        "logName": "projects/p/logs/cloudaudit.googleapis.com%2Factivity",
        "protoPayload": {
            "methodName": "google.cloud.ml.v1.ModelService.CreateModel",
            "resourceName": resource,
            "authenticationInfo": {"principalEmail": "ann@example.com"},
        },
    }
    if call:
        made["operation"] = {"id": call, **({"first": True} if first else {"last": True})}
    return made


def write(folder: Path, day: datetime.date, *entries: Any, tail: str = "") -> None:
    text = "".join(json.dumps(one) + "\n" for one in entries)
    (folder / f"{day}.jsonl").write_text(text + tail)


def ids(page: AuditPage) -> list[str]:
    return [one["insertId"] for one in page.entries]


def read(
    folder: Path, query: AuditQuery | None = None, at: AuditPosition | None = None, **limits: int
) -> AuditPage:
    return read_newest(folder, query or AuditQuery(), at, **{"most": 100, "max_bytes": 1 << 30, **limits})


def test_pages_follow_each_other_over_days_without_a_gap(tmp_path: Path) -> None:
    write(tmp_path, DAY, *(entry(number) for number in range(5)))
    write(
        tmp_path, DAY + datetime.timedelta(days=1), *(entry(number) for number in range(5, 8)), tail='{"cut'
    )
    seen, at = [], None
    while True:
        page = read(tmp_path, at=at, most=2)
        seen += ids(page)
        if page.next_position is None:
            break
        at = AuditPosition.parse(str(page.next_position))
    assert seen == [str(number) for number in reversed(range(8))]


def test_lines_longer_than_a_block_are_whole(tmp_path: Path) -> None:
    write(tmp_path, DAY, *(entry(n, resource=f"projects/p/models/{'m' * 200_000}") for n in range(3)))
    assert ids(read(tmp_path)) == ["2", "1", "0"]


def test_the_first_line_of_a_call_is_shown_only_without_a_result(tmp_path: Path) -> None:
    """Also where the result is on the page before."""
    write(
        tmp_path,
        DAY,
        entry(0, call="a", first=True),
        entry(1, call="b", first=True),
        entry(2, call="a"),
    )
    page = read(tmp_path, most=1)
    assert ids(page) == ["2"]
    assert ids(read(tmp_path, at=page.next_position)) == ["1"]


def test_a_page_ends_where_enough_was_read(tmp_path: Path) -> None:
    write(tmp_path, DAY, entry(0), *(entry(number, resource="projects/q/jobs/j") for number in range(1, 50)))
    query = AuditQuery(resource="projects/p")
    page = read(tmp_path, query, max_bytes=5000)
    assert (ids(page), page.is_cut) == ([], True)
    assert page.next_position is not None
    assert ids(read(tmp_path, query, page.next_position)) == ["0"]


def test_a_project_is_no_part_of_another_name(tmp_path: Path) -> None:
    write(tmp_path, DAY, entry(0), entry(1, resource="projects/p2/models/m"), entry(2, resource="server"))
    assert ids(read(tmp_path, AuditQuery(project="projects/p"))) == ["0"]


def test_days_before_the_earliest_time_are_not_opened(tmp_path: Path) -> None:
    write(tmp_path, DAY, entry(0))
    (tmp_path / "2029-12-31.jsonl").mkdir()
    since = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
    assert ids(read(tmp_path, AuditQuery(since=since))) == ["0"]
    assert read(tmp_path / "nothing") == AuditPage((), None)
