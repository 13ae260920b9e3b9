"""`python -m batch`: one attempt at one job, in a process of its own; see `batch.messages`."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from batch import job
from batch.messages import FailureStatus, JobReport, JobRequest
from serving.errors import InvalidArgument, ServingError

logger = logging.getLogger("batch")

# Online predictions have priority.
_NICE = 10
# Seconds between two heartbeats.
_HEARTBEAT_SECONDS = 5.0


def main() -> None:
    """Run the JobRequest on stdin and report on stdout; exit code 1: another attempt may succeed."""
    # Beam's warnings are of no use to users of a job.
    logging.basicConfig(
        stream=sys.stderr, level=logging.ERROR, format="%(asctime)s %(levelname)s %(message)s"
    )
    for ours in ("batch", "serving"):
        logging.getLogger(ours).setLevel(logging.INFO)
    os.nice(_NICE)
    # Output of a model's code must not mix with the reports.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    write_lock = threading.Lock()

    def send_report(report: JobReport) -> None:
        with write_lock:
            os.write(out, msgspec.json.encode(report) + b"\n")

    threading.Thread(target=_send_heartbeats, args=(send_report,), name="beat", daemon=True).start()
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=JobRequest)
    except msgspec.DecodeError as error:
        send_report(
            JobReport(failed=FailureStatus(InvalidArgument.status, f"This is no request for a job: {error}"))
        )
        return
    _use_temp_folder(Path(request.scratch_dir, "tmp"))
    try:
        job.run_request(request, send_report)
        code = 0
    except Exception as error:
        # An expected failure needs no traceback.
        logger.error("the attempt failed: %s", error, exc_info=not isinstance(error, ServingError))
        code = 1
    logging.shutdown()
    # Threads and destructors of frameworks and Beam can hang the interpreter's exit.
    os._exit(code)


def _send_heartbeats(send_report: job.SendReport) -> None:
    while True:
        time.sleep(_HEARTBEAT_SECONDS)
        send_report(JobReport())


def _use_temp_folder(folder: Path) -> None:
    """Put the temporary files of Beam, of models and of all workers into a folder that goes with the job."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


if __name__ == "__main__":
    main()
