"""The file of reports, however it is written and whenever it is read."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import pytest

from training.provided.hypertune import HyperTune
from tuning.metrics.hypertune_file import HypertuneFile
from tuning.metrics.metric_curve import MAX_PENDING


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "output.metrics"


def line(value: object, step: int = 0, tag: str = "accuracy", **more: object) -> str:
    report = {"timestamp": 100.0 + step, "trial": "1", tag: str(value), "global_step": str(step), **more}
    return json.dumps(report) + "\n"


def read_all(file: HypertuneFile, *, at_end: bool = False) -> list[tuple[int, float]]:
    file.read(at_end=at_end)
    return [(one.step, one.value) for one in file.curve.take_finite()]


def test_reports_come_once_in_their_order(path: Path) -> None:
    file = HypertuneFile(path, "accuracy")
    path.write_text(line(0.5, 1) + line(0.6, 2))

    assert read_all(file) == [(1, 0.5), (2, 0.6)]
    assert read_all(file) == []


def test_a_missing_file_has_none(path: Path) -> None:
    file = HypertuneFile(path, "accuracy")

    assert read_all(file, at_end=True) == []
    assert file.curve.final is None


def test_a_file_that_is_written_anew_brings_only_its_new_lines(path: Path) -> None:
    """The package keeps its latest 100 reports, and drops the first for each further one."""
    file = HypertuneFile(path, "accuracy")
    lines = [line(step / 1000, step) for step in range(150)]
    path.write_text("".join(lines[:100]))
    read_all(file)
    path.write_text("".join(lines[30:130]))

    assert [step for step, _ in read_all(file)] == list(range(100, 130))


def test_a_file_found_empty_between_two_writes_is_read_later(path: Path) -> None:
    file = HypertuneFile(path, "accuracy")
    path.write_text(line(0.1, 1))
    read_all(file)
    path.write_text("")
    assert read_all(file) == []
    path.write_text(line(0.1, 1) + line(0.2, 2))

    assert read_all(file) == [(2, 0.2)]


def test_half_a_line_waits_for_its_end(path: Path) -> None:
    file = HypertuneFile(path, "accuracy")
    whole = line(0.25, 3)
    path.write_text(whole[:20])
    assert read_all(file) == []
    path.write_text(whole)

    assert read_all(file) == [(3, 0.25)]


def test_at_the_end_a_last_line_needs_no_end(path: Path) -> None:
    path.write_text(line(0.25, 3).rstrip("\n"))

    assert read_all(HypertuneFile(path, "accuracy"), at_end=True) == [(3, 0.25)]


@pytest.mark.parametrize(
    "broken", ["{", "[1]", "null", '{"accuracy": "high"}', '{"accuracy": null}', "\0\0", "[" * 9000]
)
def test_a_line_that_is_no_report_is_passed_over(path: Path, broken: str) -> None:
    path.write_text(line(0.1, 1) + broken + "\n" + line(0.2, 2))

    assert read_all(HypertuneFile(path, "accuracy")) == [(1, 0.1), (2, 0.2)]


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "Infinity"])
def test_values_that_are_no_numbers_are_final_but_no_measurements(path: Path, text: str) -> None:
    file = HypertuneFile(path, "accuracy")
    path.write_text(line(0.1, 1) + line(text, 2))

    assert read_all(file) == [(1, 0.1)]
    assert file.curve.final is not None
    assert not math.isfinite(file.curve.final.value)


def test_the_final_value_is_the_latest_of_the_highest_step(path: Path) -> None:
    file = HypertuneFile(path, "accuracy")
    path.write_text(line(0.9, 7) + line(0.8, 7) + line(0.1, 3))
    file.read()

    assert file.curve.final is not None
    assert file.curve.final[:2] == (7, 0.8)


def test_steps_may_be_missing_or_absurd(path: Path) -> None:
    path.write_text('{"accuracy": 0.5}\n' + line(0.6, 0, global_step="1e400"))

    assert read_all(HypertuneFile(path, "accuracy")) == [(0, 0.5), (0, 0.6)]


def test_other_tags_are_told_with_their_last_values(path: Path) -> None:
    file = HypertuneFile(path, "accuracy")
    path.write_text(line(0.5, 1, tag="acc") + line(0.7, 2, tag="acc") + line("nan", 2, tag="loss"))
    file.read()

    assert [(one.tag, str(one.value)) for one in file.seen_tags] == [("acc", "0.7"), ("loss", "nan")]
    assert file.seen_tags[0].file == str(path)


def test_a_pipe_in_its_place_is_not_waited_for(path: Path) -> None:
    os.mkfifo(path)

    assert read_all(HypertuneFile(path, "accuracy"), at_end=True) == []


@pytest.mark.parametrize("reports", [50_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_many_appended_reports_take_bounded_memory(path: Path, reports: int) -> None:
    with path.open("w") as written:
        written.writelines(line(step / reports, step) for step in range(reports))
    file = HypertuneFile(path, "accuracy")
    file.read(at_end=True)
    values = file.curve.take_finite()

    assert len(values) <= 2 * MAX_PENDING
    assert values[-1][:2] == (reports - 1, (reports - 1) / reports)
    assert file.curve.final == values[-1]


def test_reports_of_the_package_are_read_while_they_are_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value that is read was reported, and the last one is."""
    monkeypatch.setenv("CLOUD_ML_HP_METRIC_FILE", str(path))
    tuner = HyperTune()
    done = threading.Event()

    def report() -> None:
        for step in range(1, 501):
            tuner.report_hyperparameter_tuning_metric("accuracy", step / 500, step)
        done.set()

    thread = threading.Thread(target=report)
    thread.start()
    file, seen = HypertuneFile(path, "accuracy"), []
    while not done.is_set():
        seen += read_all(file)
    thread.join()
    seen += read_all(file, at_end=True)

    assert all(value == step / 500 for step, value in seen)
    assert seen == sorted(set(seen))
    assert seen[-1] == (500, 1.0)
