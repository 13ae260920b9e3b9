"""`python -m training LIFELINE`: one attempt at a training job; see `training.messages`."""

from __future__ import annotations

import os
import sys

import msgspec

from training.messages import TrainingFailure, TrainingReport, TrainingRequest
from training.supervisor import run_request


def main(lifeline: int) -> None:
    """Run the TrainingRequest on stdin and report on stdout."""
    os.set_inheritable(lifeline, False)
    # What libraries print must not mix with the reports.
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send_report(report: TrainingReport) -> None:
        os.write(out, msgspec.json.encode(report) + b"\n")

    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=TrainingRequest)
    except msgspec.DecodeError as error:
        message = f"This is no request for a training job: {error}"
        send_report(TrainingReport(failed=TrainingFailure("INVALID_ARGUMENT", message)))
        return
    run_request(request, send_report, lifeline)


if __name__ == "__main__":
    main(int(sys.argv[1]))
