from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.bounds import HANG_SECONDS
from tests.tuning.test_study import STUDY
from tuning.messages import (
    SUGGESTER_READY,
    ImportanceAnswer,
    ImportanceRequest,
    KnownTrial,
    SuggesterOrder,
    SuggestionAnswer,
    SuggestionRequest,
    TuningAnswer,
    TuningFailure,
    TuningRequest,
)
from tuning.suggester import answer_line, answer_request

REQUEST = SuggestionRequest(STUDY, (), 2, 1)


def read_answer(line: bytes) -> TuningAnswer:
    answer: TuningAnswer = msgspec.json.decode(line, type=TuningAnswer)
    return answer


@contextlib.contextmanager
def run_process(address: Path) -> Iterator[None]:
    """The process that suggests, once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tuning"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    watchdog = threading.Timer(HANG_SECONDS, process.kill)
    watchdog.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(SuggesterOrder(str(address))))
        process.stdin.close()
        assert msgspec.json.decode(process.stdout.readline()) == SUGGESTER_READY
        yield
    finally:
        watchdog.cancel()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def ask(address: Path, *requests: TuningRequest | bytes) -> list[TuningAnswer]:
    """All are sent before the first answer is read."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HANG_SECONDS)
        connection.connect(str(address))
        for request in requests:
            connection.sendall(
                request if isinstance(request, bytes) else msgspec.json.encode(request) + b"\n"
            )
        with connection.makefile("rb") as answers:
            return [read_answer(answers.readline()) for _ in requests]


def test_the_process_answers_as_the_function_does(tmp_path: Path) -> None:
    address = tmp_path / "suggester"
    with run_process(address):
        assert ask(address, REQUEST) == [answer_request(REQUEST)]
        assert address.stat().st_mode & 0o777 == 0o600


def test_answers_come_in_the_order_of_requests_and_failures_among_them(tmp_path: Path) -> None:
    """A bad request ends neither the connection nor the process, nor does a client that goes away."""
    address = tmp_path / "suggester"
    with run_process(address):
        answers = ask(address, b"nonsense\n", ImportanceRequest(STUDY, ()), REQUEST)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(address))
            connection.sendall(msgspec.json.encode(REQUEST) + b"\n")
        again = ask(address, REQUEST)

    assert isinstance(answers[0], TuningFailure)
    assert answers[1] == ImportanceAnswer({})
    assert again == answers[2:]


def test_failures_are_answers() -> None:
    nothing = msgspec.structs.replace(STUDY, metrics=())
    strange = msgspec.json.encode(SuggestionRequest(STUDY, (), 1, -5))

    assert answer_line(msgspec.json.encode(SuggestionRequest(nothing, (), 1, 1))) == msgspec.json.encode(
        TuningFailure("INVALID_ARGUMENT", "A study needs at least one metric, and each a name.")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("traceback.print_exc", lambda: None)
        answer = read_answer(answer_line(strange))
    assert isinstance(answer, TuningFailure)
    assert answer.status == "INTERNAL"


def test_points_are_suggested() -> None:
    answer = answer_request(REQUEST)

    assert isinstance(answer, SuggestionAnswer)
    assert [list(point) for point in answer.points] == [["x"], ["x"]]


def test_nothing_is_learnt_from_trials_outside_the_space() -> None:
    foreign = (
        KnownTrial(1, {"y": 0.5}, (1.0,)),
        KnownTrial(2, {"x": 7.0}, (1.0,)),
        KnownTrial(3, {"x": "a"}),
    )

    assert answer_request(msgspec.structs.replace(REQUEST, trials=foreign)) == answer_request(REQUEST)
