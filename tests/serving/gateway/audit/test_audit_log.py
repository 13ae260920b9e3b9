from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from autoscaler.supervision import Supervisor
from serving.config import ServeConfig
from serving.errors import Unavailable
from serving.gateway.audit import audit_log
from serving.gateway.audit.audit_log import AuditLog, record_command
from serving.gateway.audit.log_entry import OK_STATUS, AuditedCall, AuditLogType, CallStatus
from serving.gateway.audit.log_folder import audit_log_path, list_log_files
from tests.bounds import HANG_SECONDS

DAY = 24 * 3600


def call(audit: AuditLog, log: AuditLogType = AuditLogType.ACTIVITY) -> AuditedCall:
    return AuditedCall(
        id=audit.new_id(), log=log, method="projects.models.create", resource="projects/p/models/m"
    )


def lines(state_dir: Path) -> list[Any]:
    return [
        json.loads(line)
        for file in list_log_files(audit_log_path(state_dir))
        for line in file.read_bytes().splitlines()
    ]


def run(main: Callable[[AuditLog], Awaitable[None]], state_dir: Path, now: list[float] | None = None) -> None:
    """Use an audit log from its start to its end; `now` holds the time."""

    async def bounded() -> None:
        config = ServeConfig(state_dir=state_dir, audit_data_access="all")
        audit = AuditLog(config) if now is None else AuditLog(config, lambda: now[0])
        async with asyncio.timeout(HANG_SECONDS), Supervisor() as supervisor:
            audit.start(supervisor)
            await main(audit)
            await audit.close()

    asyncio.run(bounded())


def test_a_change_is_on_disk_before_it_is_done_and_before_it_is_answered(tmp_path: Path) -> None:
    """Not soon after."""

    async def main(audit: AuditLog) -> None:
        change = call(audit)
        await audit.record_intent(change)
        assert ["first" in line["operation"] for line in lines(tmp_path)] == [True]
        await audit.record_result(change, OK_STATUS)
        assert ["last" in line["operation"] for line in lines(tmp_path)] == [False, True]
        assert len({line["insertId"] for line in lines(tmp_path)}) == 2
        assert len({line["operation"]["id"] for line in lines(tmp_path)}) == 1

    run(main, tmp_path)


def test_many_changes_at_a_time(tmp_path: Path) -> None:
    """Each is written once, whichever share a write."""

    async def main(audit: AuditLog) -> None:
        await asyncio.gather(*(audit.record_intent(call(audit)) for _ in range(200)))
        assert audit.stats() == {"written": 200, "waiting": 0, "dropped": 0}

    run(main, tmp_path)
    assert len({line["insertId"] for line in lines(tmp_path)}) == 200


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    """An orderly stop loses nothing."""

    async def main(audit: AuditLog) -> None:
        for _ in range(10):
            audit.record_data_access(call(audit, AuditLogType.DATA_ACCESS))
        audit.record_denied(call(audit), CallStatus(7, "no"))

    run(main, tmp_path)
    assert len(lines(tmp_path)) == 11


def test_data_access_is_written_without_a_stop(tmp_path: Path) -> None:
    """Soon, and nobody waits for it."""

    async def main(audit: AuditLog) -> None:
        audit.record_data_access(call(audit, AuditLogType.DATA_ACCESS))
        for _ in range(1000):
            if audit.written:
                break
            await asyncio.sleep(0.01)
        assert audit.written == 1

    run(main, tmp_path)


def test_no_change_while_the_log_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused with the folder's name and when to try again; it works as soon as the log does."""
    folder = audit_log_path(tmp_path)
    folder.write_text("in the way")

    async def main(audit: AuditLog) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable, match=f"{folder} cannot be written: .*Nothing") as raised:
                await audit.record_intent(call(audit))
            assert raised.value.retry_after
        folder.unlink()
        await audit.record_intent(call(audit))

    run(main, tmp_path)
    assert len(lines(tmp_path)) == 1
    said = [message.message for message in caplog.records]
    assert [("cannot be written" in text, "written again" in text) for text in said] == [
        (True, False),
        (False, True),
    ]


def test_a_log_that_fails_after_a_change_fails_nothing(tmp_path: Path) -> None:
    """The change is done, and its first line says so; the loss is counted."""

    async def main(audit: AuditLog) -> None:
        change = call(audit)
        await audit.record_intent(change)
        folder = audit_log_path(tmp_path)
        folder.rename(tmp_path / "kept")
        (tmp_path / "kept" / list_log_files(tmp_path / "kept")[0].name).unlink()
        folder.write_text("in the way")
        await audit.record_result(change, OK_STATUS)
        assert audit.stats() == {"written": 1, "waiting": 0, "dropped": 1}

    run(main, tmp_path)


def test_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More data access than can be written is dropped and counted; changes are not."""
    monkeypatch.setattr(audit_log, "_MAX_PENDING", 5)

    async def main(audit: AuditLog) -> None:
        for _ in range(8):
            audit.record_data_access(call(audit, AuditLogType.DATA_ACCESS))
        assert audit.stats() == {"written": 0, "waiting": 5, "dropped": 3}
        await audit.record_intent(call(audit))
        assert audit.stats() == {"written": 6, "waiting": 0, "dropped": 3}

    run(main, tmp_path)


def test_denied_calls_cannot_fill_the_disk(tmp_path: Path) -> None:
    """So many in a second are recorded, the others counted; the next second is another."""
    now = [1000.0]

    async def main(audit: AuditLog) -> None:
        for _ in range(150):
            audit.record_denied(call(audit), CallStatus(16, "who"))
        now[0] += 1
        audit.record_denied(call(audit), CallStatus(16, "who"))

    run(main, tmp_path, now)
    assert len(lines(tmp_path)) == 101


def test_a_day_has_a_file_of_its_own(tmp_path: Path) -> None:
    """The day is that of the clock, in UTC, also when it goes back."""
    now = [10.5 * DAY]

    async def main(audit: AuditLog) -> None:
        for step in (0, 1, -1):
            now[0] += step * DAY
            await audit.record_intent(call(audit))

    run(main, tmp_path, now)
    assert [
        (file.stem, len(file.read_bytes().splitlines())) for file in list_log_files(audit_log_path(tmp_path))
    ] == [
        ("1970-01-11", 2),
        ("1970-01-12", 1),
    ]


def test_nothing_is_changed_after_the_end(tmp_path: Path) -> None:
    """A change that comes when the log is closed is refused, not kept waiting."""

    async def main() -> None:
        audit = AuditLog(ServeConfig(state_dir=tmp_path))
        await audit.close()
        async with asyncio.timeout(HANG_SECONDS):
            with pytest.raises(Unavailable, match="the server stops"):
                await audit.record_intent(call(audit))

    asyncio.run(main())


def test_a_command_records_beside_the_server(tmp_path: Path) -> None:
    """In the same log, at once."""

    async def main(audit: AuditLog) -> None:
        await audit.record_intent(call(audit))
        record_command(
            tmp_path, "pilotlight.tokens.create", "tokens/1", {"principal": "user:ann@example.com"}
        )
        await audit.record_intent(call(audit))

    run(main, tmp_path)
    names = [line["protoPayload"]["methodName"] for line in lines(tmp_path)]
    assert names[1] == "pilotlight.v1.TokenService.CreateToken"
    assert len(names) == 3
    payload = lines(tmp_path)[1]["protoPayload"]
    assert payload["status"] == {}
    assert payload["request"] == {"principal": "user:ann@example.com"}
    user = pwd.getpwuid(os.getuid()).pw_name
    assert payload["authenticationInfo"]["principalEmail"] == f"{user}@localhost"


def test_a_command_that_cannot_record(tmp_path: Path) -> None:
    """It must not do what it was about to."""
    audit_log_path(tmp_path).write_text("in the way")

    with pytest.raises(Unavailable, match="Nothing is changed"):
        record_command(tmp_path, "pilotlight.tokens.create", "tokens/1", {})
