"""A worker process of the embedded runner: Beam's own, with a sign of life from its start on.

`python -m batch.beam.worker METERS`; see `batch.beam.progress`.
"""

from __future__ import annotations

import sys

from batch.beam.progress import ProgressWriter

if __name__ == "__main__":
    ProgressWriter(sys.argv[1]).start()
    # It takes seconds to import, in which a worker may fall silent too.
    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)
