"""The process that suggests: answers requests over a unix socket; see `tuning.messages`."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from threadpoolctl import threadpool_limits

from serving.errors import ServingError, describe_exception
from tuning.algorithms.importance import measure_importance
from tuning.algorithms.suggestion import suggest_points
from tuning.messages import (
    SUGGESTER_READY,
    ImportanceRequest,
    SuggesterOrder,
    SuggestionRequest,
    TuningAnswer,
    TuningFailure,
    TuningRequest,
)
from tuning.study import check_study


def start(
    arguments: Mapping[str, Any],
    listener: socket.socket,
    report: Callable[[Mapping[str, Any]], None],
    _: object,
) -> int:
    """The entry of a process that a pilot forks; see `autoscaler.node_process`."""
    listener.close()
    run_suggester(msgspec.convert(arguments, SuggesterOrder), report)
    return 0


def run_suggester(order: SuggesterOrder, report: Callable[[Mapping[str, Any]], None]) -> None:
    """Answer the requests of one connection after the other; does not return."""
    if order.nice:
        os.nice(order.nice)
    # Its matrices are small, and more threads than one would add their sums in another order each time.
    threadpool_limits(1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(order.address)
        Path(order.address).chmod(0o600)
        listener.listen()
        report(SUGGESTER_READY)
        while True:
            connection, _ = listener.accept()
            with connection:
                _serve_connection(connection)


def _serve_connection(connection: socket.socket) -> None:
    """Until the other side closes it."""
    with connection.makefile("rb") as requests:
        for line in requests:
            try:
                connection.sendall(answer_line(line) + b"\n")
            except OSError:
                return


def answer_line(line: bytes) -> bytes:
    """One request as JSON to its answer as JSON, a failure included."""
    try:
        answer = answer_request(msgspec.json.decode(line, type=TuningRequest))
    except msgspec.DecodeError as error:
        answer = TuningFailure("INVALID_ARGUMENT", f"This is no request for a suggestion: {error}")
    except ServingError as error:
        answer = TuningFailure(error.status, error.message)
    except Exception as error:
        traceback.print_exc()
        answer = TuningFailure("INTERNAL", f"Choosing the next trials failed: {describe_exception(error)}.")
    return msgspec.json.encode(answer)


def answer_request(request: TuningRequest) -> TuningAnswer:
    """Raises InvalidArgument for a study that is none."""
    check_study(request.study)
    # Nothing can be learnt from stored trials that are not in the space.
    known = tuple(trial for trial in request.trials if request.study.space.contains(trial.parameters))
    match request:
        case SuggestionRequest():
            return suggest_points(msgspec.structs.replace(request, trials=known))
        case ImportanceRequest():
            return measure_importance(msgspec.structs.replace(request, trials=known))
