from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from serving.cli.admin.audit import parse_time
from serving.gateway.audit.log_entry import (
    OK_STATUS,
    AuditedCall,
    AuditEvent,
    AuditLogType,
    AuditStage,
    CallStatus,
    encode_line,
)
from serving.gateway.audit.log_folder import AuditLogFolder, audit_log_path
from tests.bounds import HANG_SECONDS
from tests.serving.cli.conftest import Run

NOW = datetime.datetime(2030, 1, 2, 12, tzinfo=datetime.UTC)
MODEL = "projects/p/models/flowers"
VERSION = MODEL + "/versions/v1"


class Writer:
    """Writes calls, an hour apart, the first at NOW."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = AuditLogFolder(audit_log_path(state_dir))
        self._count = 0

    def add(
        self, method: str, resource: str, *stages: tuple[AuditStage, CallStatus, bool], **more: Any
    ) -> None:
        self._count += 1
        call = AuditedCall(
            **{
                "id": str(self._count),
                "log": AuditLogType.ACTIVITY,
                "method": method,
                "resource": resource,
                "principal": "user:ann@example.com",
                **more,
            }
        )
        time_ = NOW + datetime.timedelta(hours=self._count - 1)
        for stage, status, last in stages or (
            (AuditStage.BEFORE, OK_STATUS, False),
            (AuditStage.AFTER, OK_STATUS, True),
        ):
            event = AuditEvent(call=call, stage=stage, time=time_.timestamp(), status=status, last=last)
            self._folder.append([encode_line(event)], time_.date())

    def close(self) -> None:
        self._folder.close()


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with a log of several calls, which commands take for their own."""
    folder = tmp_path / "state"
    monkeypatch.setenv("PILOTLIGHT_STATE_DIR", str(folder))
    writer = Writer(folder)
    writer.add("projects.models.create", MODEL)
    writer.add(
        "projects.models.versions.create",
        VERSION,
        (AuditStage.BEFORE, OK_STATUS, False),
        (AuditStage.AFTER, OK_STATUS, False),
        (AuditStage.END, CallStatus(3, "bad model"), True),
    )
    writer.add(
        "projects.models.delete",
        MODEL,
        (AuditStage.ONLY, CallStatus(7, "no"), True),
        principal="user:bob@example.com",
    )
    writer.add(
        "projects.models.get", MODEL + "2", (AuditStage.ONLY, OK_STATUS, True), log=AuditLogType.DATA_ACCESS
    )
    writer.add("projects.models.delete", MODEL, (AuditStage.BEFORE, OK_STATUS, False))
    for number in range(15):
        writer.add("projects.models.create", f"projects/q/models/m{number}", principal="")
    writer.close()
    return folder


def told(text: str) -> list[tuple[str, ...]]:
    """Result, principal, method and resource of each line below the heading."""
    heading, *lines = text.splitlines()
    assert heading.split() == ["TIME", "RESULT", "PRINCIPAL", "METHOD", "RESOURCE"]
    return [tuple(line.split()[2:]) for line in lines]


def test_a_line_for_each_call(state_dir: Path, offline: Run) -> None:
    """Changes have one for their two entries, and another when their work ends; the killed ones are last."""
    result = offline("audit --resource projects/p")

    assert result.code == 0
    ann, bob = "ann@example.com", "bob@example.com"
    assert told(result.out) == [
        ("OK", ann, "CreateModel", MODEL),
        ("BEGUN", ann, "CreateVersion", VERSION),
        ("INVALID_ARGUMENT", ann, "CreateVersion", VERSION),
        ("PERMISSION_DENIED", bob, "DeleteModel", MODEL),
        ("OK", ann, "GetModel", MODEL + "2"),
        ("UNKNOWN", ann, "DeleteModel", MODEL),
    ]


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ("--principal bob@example.com", 1),
        ("--principal user:bob@example.com", 1),
        ("--principal bob", 0),
        ("--method createversion", 2),
        ("--resource models/flowers", 5),
        ("--resource projects/q", 15),
        ("--resource flow", 0),
        ("--kind data_access", 1),
        ("--since 2030-01-03T00:00:00Z", 8),
        ("--since 2030-01-03T00:00:00+01:00 --method Create", 9),
        ("--principal ann@example.com --method Delete --kind activity", 1),
    ],
)
def test_what_is_looked_for(flags: str, count: int, state_dir: Path, offline: Run) -> None:
    """All of it must fit."""
    assert len(told(offline(f"audit {flags}").out)) == count


def test_the_last_ones(state_dir: Path, offline: Run) -> None:
    """As many entries as are asked for."""
    found = told(offline("audit --limit 3").out)
    assert [resource for *_, resource in found] == [f"projects/q/models/m{number}" for number in (13, 14)]
    entries = offline("audit --limit 1 --resource projects/p --format json").out.splitlines()
    assert [json.loads(entry)["protoPayload"]["resourceName"] for entry in entries] == [MODEL]


def test_entries_as_they_are(state_dir: Path, offline: Run) -> None:
    """JSON has all of them, one per line."""
    result = offline("audit --format json --resource models/flowers")

    entries = [json.loads(line) for line in result.out.splitlines()]
    assert len(entries) == 7
    assert entries[0]["protoPayload"]["@type"] == "type.googleapis.com/google.cloud.audit.AuditLog"


def test_a_torn_line_is_told_of(state_dir: Path, offline: Run) -> None:
    """The others are shown."""
    file = min(audit_log_path(state_dir).iterdir())
    file.write_bytes(b'{"timestamp": "20\n[1]\n' + file.read_bytes() + b'{"half":')
    result = offline("audit --resource projects/p")

    assert len(told(result.out)) == 6
    assert "2 lines of the log are no entries" in result.err


def test_a_name_cannot_play_with_the_terminal(tmp_path: Path, offline: Run) -> None:
    """What clients named things is shown, not obeyed."""
    writer = Writer(tmp_path / "s")
    writer.add("projects.models.get", "projects/p/models/\x1b[2J", (AuditStage.ONLY, CallStatus(5, ""), True))
    writer.close()
    result = offline(f"audit --state-dir {tmp_path / 's'}")

    assert "\x1b" not in result.out
    assert "projects/p/models/?[2J" in result.out


def test_tokens_are_recorded(tmp_path: Path, offline: Run) -> None:
    """By the commands that make and revoke them, under the name of who runs them; never the token."""
    folder = f"--state-dir {tmp_path / 's'}"
    token = offline(f"tokens create user:ann@example.com {folder}").out.strip()
    (shown,) = offline(f"tokens list --format json {folder}").json
    offline(f"tokens revoke {shown['id']} {folder}")
    assert offline(f"tokens revoke none {folder}").code == 1

    result = offline(f"audit --format json {folder}")
    payloads = [json.loads(line)["protoPayload"] for line in result.out.splitlines()]
    assert [(payload["methodName"], payload["resourceName"]) for payload in payloads] == [
        ("pilotlight.v1.TokenService.CreateToken", f"tokens/{shown['id']}"),
        ("pilotlight.v1.TokenService.RevokeToken", f"tokens/{shown['id']}"),
    ]
    assert payloads[0]["request"] == {"principal": "user:ann@example.com"}
    assert all(payload["authenticationInfo"]["principalEmail"].endswith("@localhost") for payload in payloads)
    assert token.rpartition("_")[2] not in result.out


def test_no_log(tmp_path: Path, offline: Run) -> None:
    """The error says where it was looked for."""
    result = offline(f"audit --state-dir {tmp_path / 'none'}")

    assert result.code == 1
    assert str(tmp_path / "none" / "audit") in result.err


def test_following(tmp_path: Path) -> None:
    """What comes is shown as it comes, in a new day's file too; Ctrl-C ends it without a word."""
    state_dir = tmp_path / "state"
    writer = Writer(state_dir)
    writer.add("projects.models.create", MODEL)
    code = "from serving.cli import main; main()"
    follower = subprocess.Popen(
        [sys.executable, "-c", code, "audit", "--follow", "--state-dir", str(state_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    shown = [follower.stdout.readline() for _ in range(2)]
    for number in range(13):
        writer.add("projects.models.create", f"projects/p/models/m{number}")
    writer.close()
    shown += [follower.stdout.readline() for _ in range(13)]
    follower.send_signal(signal.SIGINT)
    rest, complaints = follower.communicate(timeout=HANG_SECONDS)

    assert len(os.listdir(audit_log_path(state_dir))) == 2  # noqa: PTH208
    assert [line.split()[-1] for line in shown[1:]] == [
        MODEL,
        *(f"projects/p/models/m{number}" for number in range(13)),
    ]
    assert (rest, complaints) == ("", "")


def test_times() -> None:
    """Ago, or a moment; without a zone it is the machine's own."""
    assert parse_time("90m", NOW) == NOW - datetime.timedelta(minutes=90)
    assert parse_time("7d", NOW) == NOW - datetime.timedelta(days=7)
    assert parse_time("2030-01-02T12:00:00Z", NOW) == NOW
    local = datetime.datetime(2030, 1, 2, 12).timestamp()
    assert parse_time("2030-01-02T12:00:00", NOW).timestamp() == local
    assert time.time() - parse_time("0s", datetime.datetime.now(datetime.UTC)).timestamp() < 60
    with pytest.raises(typer.BadParameter, match="neither"):
        parse_time("yesterday", NOW)
