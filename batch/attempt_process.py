"""The process of one attempt at one job, started as a program or forked from a pilot."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from batch import job
from batch.failures import WorkersLost
from batch.messages import EXIT_WORKERS_LOST, JobReport, JobRequest
from serving.errors import ServingError

logger = logging.getLogger("batch")

ReportMessage = Callable[[Mapping[str, Any]], None]

# Online predictions have priority.
_NICE = 10
# New objects after which the garbage collector looks. What Beam imports stays: at every 700, as is usual,
# the looks take up to a fifth of the time of the import.
_GC_THRESHOLD = 50_000
# Seconds between two heartbeats.
_HEARTBEAT_SECONDS = 5.0


def start(arguments: Mapping[str, Any], listener: socket.socket, report: ReportMessage, _: object) -> int:
    """The entry of an attempt that a pilot forks; see `autoscaler.node_process`.

    `arguments` are "request", a JobRequest. Reports are JobReports.
    """
    listener.close()
    request = msgspec.convert(arguments["request"], JobRequest)
    return run_attempt(request, lambda message: report(msgspec.to_builtins(message)))


def run_attempt(request: JobRequest, send_report: job.SendReport) -> int:
    """Run an attempt in this process, which must end with the exit code that this returns.

    1, and EXIT_WORKERS_LOST: another attempt may succeed. Threads and destructors of frameworks and Beam can
    hang the interpreter's exit: end the process by `os._exit`. `send_report` is called by one thread at a
    time.
    """
    _set_up_logging()
    os.nice(_NICE)
    gc.set_threshold(_GC_THRESHOLD)
    lock = threading.Lock()

    def send_in_turn(report: JobReport) -> None:
        with lock:
            send_report(report)

    threading.Thread(target=_send_heartbeats, args=(send_in_turn,), name="beat", daemon=True).start()
    _use_temp_folder(Path(request.scratch_dir, "tmp"))
    try:
        job.run_request(request, send_in_turn)
        code = 0
    except Exception as error:
        # An expected failure needs no traceback.
        logger.error("the attempt failed: %s", error, exc_info=not isinstance(error, ServingError))
        code = EXIT_WORKERS_LOST if isinstance(error, WorkersLost) else 1
    logging.shutdown()
    return code


def _set_up_logging() -> None:
    # Beam's warnings are of no use to users of a job.
    logging.basicConfig(
        stream=sys.stderr, level=logging.ERROR, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    for ours in ("batch", "serving"):
        logging.getLogger(ours).setLevel(logging.INFO)


def _send_heartbeats(send_report: job.SendReport) -> None:
    while True:
        time.sleep(_HEARTBEAT_SECONDS)
        send_report(JobReport())


def _use_temp_folder(folder: Path) -> None:
    """Put the temporary files of Beam, of models and of all workers into a folder that goes with the job."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
