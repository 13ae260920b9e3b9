"""How far a job is, told through files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batch.beam.progress import ProgressReader, ProgressTotals, ProgressWriter
from batch.messages import JobCounts
from serving.errors import Cancelled
from tests.server import until

WORKER = """
import sys
from batch.beam.progress import ProgressTotals, ProgressWriter
writer = ProgressWriter(sys.argv[1])
writer.start()
for number in range(100):
    writer.add(ProgressTotals(1, 2, 3, 50.0 + number, 60.0 + number), [f"example {number}"])
print("done", flush=True)
sys.stdin.read()
"""


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    """Before any worker there are no counts, no time and no silence."""
    meters = ProgressReader(tmp_path / "meters")

    assert meters.read_counts(70) == JobCounts(bytes_total=70)
    assert (meters.read_totals().seconds, meters.longest_silence(), meters.read_rejected_samples()) == (
        0.0,
        0.0,
        [],
    )


def test_what_workers_did_is_added_up(tmp_path: Path) -> None:
    """Counts over processes; bytes are never more than there are; the time is from the first to the last."""
    meters = ProgressReader(tmp_path)
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        mine = ProgressWriter(str(tmp_path))
        mine.start()
        mine.add(ProgressTotals(10, 0, 5, 40.0, 45.0))
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "done\n"

        assert meters.read_counts(10_000) == JobCounts(210, 400, 605, 10_000, 3)
        assert meters.read_counts(600).bytes == 600
        assert meters.read_totals().seconds == 159.0 - 40.0
        assert meters.read_rejected_samples() == ["example 0", "example 1", "example 2"]

        # A worker that is gone counts on, and one that says nothing is noticed.
        workers[0].kill()
        workers[0].wait()
        assert meters.read_counts(10_000).predictions == 210
        until(lambda: meters.longest_silence() > 1.3, "the dead worker is silent")
        (tmp_path / str(workers[0].pid)).unlink()
        until(lambda: meters.longest_silence() < 1.3, "the others are not")
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_a_worker_that_works_long_is_not_silent(tmp_path: Path) -> None:
    """Its file is touched although nothing is added."""
    meters = ProgressReader(tmp_path)
    file = tmp_path / str(os.getpid())
    file.touch()
    os.utime(file, (0, 0))
    until(lambda: meters.longest_silence() > 0.1, "it is silent")
    ProgressWriter(str(tmp_path)).start()

    until(lambda: meters.longest_silence() < 0.1, "a beat")


@pytest.mark.parametrize("hours", [-1, 1])
def test_silence_is_not_of_the_clock_that_is_set(tmp_path: Path, hours: int) -> None:
    """The wall clock jumps by an hour: a worker that goes on beating is not silent, another one is."""
    now = 100.0
    meters = ProgressReader(tmp_path, lambda: now)
    beating, dead = tmp_path / "1", tmp_path / "2"
    for file in (beating, dead):
        file.touch()
    assert meters.longest_silence(2) == 0

    moment = time.time() + hours * 3600
    for second in range(1, 6):
        now += 1
        os.utime(beating, (moment, moment + second))
        assert meters.longest_silence(2) == second
    dead.unlink()

    assert meters.longest_silence(1) == 0


def test_a_worker_that_never_shows_up_is_silent(tmp_path: Path) -> None:
    """From the beginning, as long as fewer are seen than there are to be."""
    meters = ProgressReader(tmp_path)
    until(lambda: meters.longest_silence(1) > 0.1, "nobody is there")
    assert meters.longest_silence() == 0.0

    ProgressWriter(str(tmp_path)).add(ProgressTotals())

    assert meters.longest_silence(1) < meters.longest_silence(2)


def test_a_second_meter_of_a_process_counts_on(tmp_path: Path) -> None:
    """Beam may make a step anew; what the one before counted stays."""
    ProgressWriter(str(tmp_path)).add(ProgressTotals(1, 1, 1, 1.0, 2.0))
    ProgressWriter(str(tmp_path)).add(ProgressTotals(1, 0, 1, 3.0, 4.0))

    assert ProgressReader(tmp_path).read_totals() == ProgressTotals(2, 1, 2, 1.0, 4.0)


def test_workers_stop_when_told(tmp_path: Path) -> None:
    """The next block raises, and does not count."""
    meters, meter = ProgressReader(tmp_path), ProgressWriter(str(tmp_path))
    meter.add(ProgressTotals(1, 0, 1, 1.0, 2.0))
    meters.stop_workers()

    with pytest.raises(Cancelled):
        meter.add(ProgressTotals(1, 0, 1, 1.0, 2.0))
    assert meters.read_totals().predictions == 1
    assert meters.read_counts(1).workers == 1


def test_a_meter_without_a_folder() -> None:
    """On machines that nobody looks at from here it does nothing."""
    meter = ProgressWriter("")
    meter.start()
    meter.add(ProgressTotals(1, 1, 1, time.time(), time.time()), ["example"])


def test_examples_are_few_and_any_text(tmp_path: Path) -> None:
    """The first three of a worker, whatever is in them."""
    meter = ProgressWriter(str(tmp_path))
    texts = ["a\nb", "ä€😀\u2028", '"', "d", "e"]
    meter.add(ProgressTotals(), texts[:1])
    meter.add(ProgressTotals(), texts[1:])
    meter.add(ProgressTotals(), ["late"])

    assert ProgressReader(tmp_path).read_rejected_samples() == texts[:3]
