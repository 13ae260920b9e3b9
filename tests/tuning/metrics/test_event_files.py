"""Event files below a folder, written by TensorFlow and byte by byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.tuning.metrics.event_writer import write_event
from tuning.metrics.event_files import EventFiles, LocalEventFolder

NAME = "events.out.tfevents.1700000000.host.1.0.v2"


def follow(folder: Path, tag: str = "accuracy") -> EventFiles:
    return EventFiles(LocalEventFolder(folder), tag)


def read_all(files: EventFiles, *, at_end: bool = False) -> list[tuple[int, float]]:
    files.read(at_end=at_end)
    return [(one.step, one.value) for one in files.curve.take_finite()]


def append(path: Path, *content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(content))


def test_a_file_that_grows_is_read_on(tmp_path: Path) -> None:
    files = follow(tmp_path)
    append(tmp_path / NAME, write_event("accuracy", 0.25, 1))
    assert read_all(files) == [(1, 0.25)]
    append(tmp_path / NAME, write_event("accuracy", 0.5, 2))

    assert read_all(files) == [(2, 0.5)]
    assert read_all(files) == []


def test_half_a_record_waits_for_the_rest(tmp_path: Path) -> None:
    files, record = follow(tmp_path), write_event("accuracy", 0.5, 2)
    append(tmp_path / NAME, write_event("accuracy", 0.25, 1), record[:9])
    assert read_all(files) == [(1, 0.25)]
    append(tmp_path / NAME, record[9:])

    assert read_all(files) == [(2, 0.5)]


def test_a_file_that_ends_in_half_a_record_has_the_others(tmp_path: Path) -> None:
    append(tmp_path / NAME, write_event("accuracy", 0.25, 1), write_event("accuracy", 0.5, 2)[:-1])

    assert read_all(follow(tmp_path), at_end=True) == [(1, 0.25)]


def test_rotated_files_follow_each_other_by_name(tmp_path: Path) -> None:
    files = follow(tmp_path)
    append(tmp_path / "events.out.tfevents.1700000002.host", write_event("accuracy", 0.5, 2))
    append(tmp_path / "events.out.tfevents.1700000001.host", write_event("accuracy", 0.25, 1))
    assert read_all(files) == [(1, 0.25), (2, 0.5)]
    append(tmp_path / "events.out.tfevents.1700000003.host", write_event("accuracy", 0.75, 3))

    assert read_all(files) == [(3, 0.75)]


@pytest.mark.parametrize("folder", ["validation", "eval", "val", "eval_holdout", "logs/validation"])
def test_a_folder_of_validation_counts_before_others(tmp_path: Path, folder: str) -> None:
    append(tmp_path / folder / NAME, write_event("accuracy", 0.5, 1, time=10.0))
    append(tmp_path / "train" / NAME, write_event("accuracy", 0.9, 1, time=20.0))

    assert read_all(follow(tmp_path)) == [(1, 0.5)]


def test_without_one_the_latest_folder_counts(tmp_path: Path) -> None:
    append(tmp_path / "first" / NAME, write_event("accuracy", 0.9, 1, time=10.0))
    append(tmp_path / "second" / NAME, write_event("accuracy", 0.5, 1, time=20.0))

    assert read_all(follow(tmp_path)) == [(1, 0.5)]


def test_other_tags_are_told_with_value_and_file(tmp_path: Path) -> None:
    files = follow(tmp_path)
    append(tmp_path / "train" / NAME, write_event("acc", 0.25, 1), write_event("acc", 0.5, 2))

    assert read_all(files) == []
    assert [tuple(one) for one in files.seen_tags] == [("acc", 0.5, f"train/{NAME}")]


def test_links_pipes_and_other_files_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    append(tmp_path / "elsewhere", write_event("accuracy", 0.5, 1))
    append(folder / "model.data", write_event("accuracy", 0.5, 1))
    (folder / NAME).symlink_to(tmp_path / "elsewhere")
    (folder / "loop").symlink_to(folder)

    assert read_all(follow(folder), at_end=True) == []
    os.mkfifo(folder / f"{NAME}.pipe")
    assert read_all(follow(folder), at_end=True) == []


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert read_all(follow(tmp_path / "missing"), at_end=True) == []


def test_a_look_is_bounded_and_the_last_reads_all(tmp_path: Path) -> None:
    records = 200_000
    append(tmp_path / NAME, *(write_event("accuracy", step / records, step) for step in range(records)))
    files = follow(tmp_path)
    first = read_all(files)
    last = read_all(files, at_end=True)

    assert 0 < first[-1][0] < records - 1
    assert last[-1][0] == records - 1


TENSORFLOW = """
    import sys
    import tensorflow as tf

    folder = sys.argv[1]
    with tf.summary.create_file_writer(f"{folder}/second/validation").as_default():
        for step in range(5):
            tf.summary.scalar("accuracy", step / 8, step)
            tf.summary.histogram("weights", [1.0, 2.0], step)
            tf.summary.text("accuracy_text", "good", step)
    with tf.summary.create_file_writer(f"{folder}/second/train").as_default():
        tf.summary.scalar("accuracy", 0.99, 4)
        tf.summary.scalar("count", tf.constant(3, tf.int64), 4)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        writer = tf.compat.v1.summary.FileWriter(f"{folder}/first", session.graph)
        for step in range(5):
            value = tf.compat.v1.Summary.Value(tag="accuracy", simple_value=step / 16)
            writer.add_summary(tf.compat.v1.Summary(value=[value]), step)
        writer.add_summary(session.run(tf.compat.v1.summary.scalar("loss", 0.125)), 5)
        writer.close()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What TensorFlow itself writes, in both of its encodings."""
    pytest.importorskip("tensorflow")
    folder = tmp_path_factory.mktemp("events")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-c", dedent(TENSORFLOW), str(folder)], env=environment, check=True)
    return folder


def test_summaries_of_tensorflow_2_are_read(written: Path) -> None:
    files = follow(written / "second")

    assert read_all(files) == [(step, step / 8) for step in range(5)]
    assert {one.tag for one in files.seen_tags} == {"accuracy", "count"}


def test_summaries_of_tensorflow_1_are_read(written: Path) -> None:
    files = follow(written / "first")

    assert read_all(files) == [(step, step / 16) for step in range(5)]
    assert {one.tag: one.value for one in files.seen_tags} == {"accuracy": 0.25, "loss": 0.125}


def test_reading_loads_no_tensorflow() -> None:
    loaded = "'tensorflow' in sys.modules or 'numpy' in sys.modules"
    code = f"import sys, tuning.metrics.event_files; sys.exit({loaded})"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
