"""A worker that joins a job while it runs: `python -m batch.beam.extra_worker`; see `extra_workers`.

The plan comes in on stdin. The worker ends when stdin does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

from batch.failures import JobFailed

logger = logging.getLogger("batch")

_EXIT_FAILED = 1


def main() -> int:
    """Returns the exit code."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.ERROR, format="%(asctime)s %(levelname)s %(message)s"
    )
    # Beam takes seconds to import.
    from batch.beam import extra_workers, pipeline, runners  # noqa: PLC0415
    from batch.beam.progress import ProgressWriter  # noqa: PLC0415

    plan = extra_workers.receive_plan(sys.stdin.buffer)
    threading.Thread(target=_end_with_stdin, name="lifeline", daemon=True).start()
    ProgressWriter(plan.progress_folder).start()
    try:
        pipeline.run_pipeline(*runners.create_embedded_runner(1, plan.progress_folder), plan)
    except JobFailed as error:
        logger.error("a worker that had joined cannot go on: %s", error)
        return _EXIT_FAILED
    return 0


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(_EXIT_FAILED)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # Threads of frameworks and Beam can hang the interpreter's exit.
    os._exit(code)
