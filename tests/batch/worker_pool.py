"""`python -m tests.batch.worker_pool FILE`: Beam's pool of workers; its address is written into the file."""

from __future__ import annotations

import sys
from pathlib import Path

from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

if __name__ == "__main__":
    address, server = BeamFnExternalWorkerPoolServicer.start()
    file = Path(sys.argv[1])
    file.with_suffix(".part").write_text(address)
    file.with_suffix(".part").rename(file)
    server.wait_for_termination()
