"""How soon training jobs run their programs. Bounds are twice what is promised: other machines are slower."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from loadtests.bench.training import measure_jobs, measure_new, run_by_hand, run_server, write_wheel

_JOBS = 5


@pytest.mark.alone
@pytest.mark.parametrize(
    ("library", "seconds"), [("sklearn", 0.6), pytest.param("tensorflow", 1.0, marks=pytest.mark.soak)]
)
def test_the_first_line_of_a_job(
    tmp_path: Path, report: Callable[[str], None], library: str, seconds: float
) -> None:
    """From the request on, its packages cached; a job is forked where its library is imported already."""
    pytest.importorskip(library)
    wheel = write_wheel(tmp_path, library)
    with run_server(tmp_path / "state") as server:
        starts = measure_jobs(server, tmp_path, wheel, _JOBS)
    by_hand = run_by_hand(tmp_path / "by_hand", wheel)

    line, imported, age = (
        median(times)
        for times in zip(*((start.line, start.imported, start.age) for start in starts), strict=True)
    )
    report(
        f"a training job with {library}: first line {line * 1000:.0f} ms after the request, in a replica "
        f"that is {age * 1000:.0f} ms old, the library imported after {imported * 1000:.0f} ms; by hand "
        f"{by_hand.line * 1000:.0f} and {by_hand.imported * 1000:.0f} ms"
    )
    assert [start.loaded for start in starts] == [True] * _JOBS
    assert line <= seconds
    assert age <= 0.06
    assert imported < by_hand.imported


@pytest.mark.alone
def test_the_first_line_of_a_job_with_new_packages(tmp_path: Path, report: Callable[[str], None]) -> None:
    start = measure_new(tmp_path)

    report(f"a training job with new packages, cold: first line after {start.line:.1f} s")
    assert not start.loaded
    assert start.line <= 16
