from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.reporting.results import (
    LoadFigures,
    LoadResult,
    MeasurementFailure,
    ServerResult,
    format_row,
    read_results,
)

FIGURES = LoadFigures(200, 2.0, 100.0, 10.0, 20.0, 30.0, 40.0, 12.0, {"err_status": 3})


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    """A load with its errors, a process, a server that ran already, and a failure come back."""
    load = LoadResult("node", "iris", "W1", 64, 100.0, 10.0, 30.0, 1, 200, 3, "body 0", 50.0, 40.0)
    process = ServerResult("node", "iris", 1.5, 200.0, 180.0, 1, 1)
    known = ServerResult("mine", "iris", None, 0.0, 0.0, 1)
    failure = MeasurementFailure("mine", "iris", "no answer")
    file = tmp_path / "results.jsonl"
    file.write_text(
        "\n".join([format_row(load, FIGURES), format_row(process), format_row(known), format_row(failure)])
    )

    found = read_results([file])

    assert found.loads == [load]
    assert found.processes == [process, known]
    assert found.failures == [failure]


def test_rows_of_other_runners_are_read(tmp_path: Path) -> None:
    """Fields that are not known here, and lines that are no rows, are passed over."""
    file = tmp_path / "results.jsonl"
    file.write_text(
        "starting\n"
        '{"peer": "x", "model": "iris", "round": 0, "workload": "W1", "conns": 1, "rps": 5.0,'
        ' "protocol": "v1", "p50_us": 1.0, "p90_us": 2.0, "p99_us": 3.0, "err_read": 1, "err_timeout": 2}\n'
        '{"kind": "verify", "url_path": "/predict"}\n'
    )

    (load,) = read_results([file]).loads

    assert load == LoadResult("x", "iris", "W1", 1, 5.0, 1.0, 3.0, errors=3)


def test_a_row_that_lacks_a_figure_is_named(tmp_path: Path) -> None:
    """The message says where it stands."""
    file = tmp_path / "results.jsonl"
    file.write_text('\n{"peer": "x", "model": "iris"}\n')

    with pytest.raises(ValueError, match=r"results\.jsonl, line 2: .*workload"):
        read_results([file])


def test_medians_are_over_the_rounds(tmp_path: Path) -> None:
    """One slow round does not count; what was not measured is None."""
    file = tmp_path / "results.jsonl"
    rows = [
        LoadResult("node", "iris", "W1", 1, rate, 1, 1, number) for number, rate in enumerate((90, 100, 5))
    ]
    file.write_text("\n".join(map(format_row, rows)))

    found = read_results([file])

    assert found.median_of("node", "W1", 1, "rps") == 90
    assert found.median_of("node", "W1", 1, "cpu_us") is None
    assert found.median_of("node", "W1", 64, "rps") is None
