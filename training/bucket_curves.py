"""Follows the metrics of a job whose folder is in a bucket, until it is ended.

`python -m training.bucket_curves` reads a CurveRequest on stdin. Whenever they have changed, it writes the
curves (`tuning.metrics.event_curves`) as a line of JSON.
"""

from __future__ import annotations

import logging
import sys
import time

import msgspec

from training.trials.trial_metrics import BucketEventFolder
from tuning.metrics.event_curves import Curves, EventCurves

logger = logging.getLogger(__name__)

# Seconds between two looks.
_POLL_SECONDS = 10.0


class CurveRequest(msgspec.Struct, frozen=True):
    """`folder` is a URI; `poll_seconds` is the time between two looks."""

    folder: str
    poll_seconds: float = _POLL_SECONDS


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=CurveRequest)
    followed = EventCurves(BucketEventFolder(request.folder))
    told: Curves = {}
    while True:
        try:
            followed.read()
        except OSError as error:
            logger.warning("the event files below %s cannot be read: %s", request.folder, error)
        if followed.curves != told:
            told = followed.curves
            sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
            sys.stdout.buffer.flush()
        time.sleep(request.poll_seconds)


if __name__ == "__main__":
    main()
