"""`python -m batch`: one attempt at one job, in a process of its own; see `batch.messages`."""

from __future__ import annotations

import os
import sys

import msgspec

from batch.attempt_process import run_attempt
from batch.messages import FailureStatus, JobReport, JobRequest
from serving.errors import InvalidArgument


def main() -> None:
    """Run the JobRequest on stdin and report on stdout."""
    # Output of a model's code must not mix with the reports.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send_report(report: JobReport) -> None:
        os.write(out, msgspec.json.encode(report) + b"\n")

    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=JobRequest)
    except msgspec.DecodeError as error:
        send_report(
            JobReport(failed=FailureStatus(InvalidArgument.status, f"This is no request for a job: {error}"))
        )
        return
    os._exit(run_attempt(request, send_report))


if __name__ == "__main__":
    main()
