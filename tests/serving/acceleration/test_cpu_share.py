"""serving.acceleration.cpu_share"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.acceleration.cpu_share import UsageReading, compute_pause

ROOT = Path(__file__).parents[3]
NEIGHBOUR = "import os; os.sched_setaffinity(0, {})\nwhile True: pass\n"
LIMITED = """
import os, time
from serving.acceleration.cpu_share import CpuShareLimit
os.sched_setaffinity(0, {})
limit = CpuShareLimit()
begun, until = time.perf_counter(), time.process_time() + 1
limit.start()
while time.process_time() < until: pass
limit.stop()
print(time.perf_counter() - begun)
"""


@pytest.mark.parametrize(
    ("used", "seconds"),
    [
        (UsageReading(elapsed=0.01, computed=0.01, waited=0.0), 0.0),  # alone
        (UsageReading(elapsed=0.0104, computed=0.01, waited=0.0004), 0.0),  # as good as alone
        (UsageReading(elapsed=0.02, computed=0.01, waited=0.01), 0.01),  # half of a busy processor
        (UsageReading(elapsed=0.04, computed=0.01, waited=0.03), 0.0),  # less than its share
        (UsageReading(elapsed=9.0, computed=8.0, waited=1.0), 1.0),  # a long call of native code
    ],
)
def test_a_pause_brings_the_use_down_to_the_share(used: UsageReading, seconds: float) -> None:
    assert compute_pause(used, share=1 / 3) == pytest.approx(seconds)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel counts no waits")
def test_a_busy_processor_is_used_to_a_third() -> None:
    """A second of computing takes three; beside one neighbour it would take two without the limit."""
    core = {min(os.sched_getaffinity(0))}
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR.format(core)]) as neighbour:
        try:
            told = subprocess.run(
                [sys.executable, "-c", LIMITED.format(core)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
        finally:
            neighbour.kill()

    assert float(told) > 2.6
