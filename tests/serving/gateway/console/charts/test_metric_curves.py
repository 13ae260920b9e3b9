"""Event files of a job are followed in bounded memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from serving.gateway.console.charts import metric_curves
from serving.gateway.console.charts.metric_curves import MetricCurveReader, find_local_folder
from tests.tuning.metrics.event_writer import write_event
from tuning.metrics.event_curves import Curves


def write(file: Path, *points: tuple[str, int, float]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as stream:
        for tag, step, value in points:
            stream.write(write_event(tag, value, step))


def open_reader() -> MetricCurveReader:
    return MetricCurveReader(lambda folder: {folder: {}})


def read(reader: MetricCurveReader, folder: Path | str) -> Curves:
    return asyncio.run(reader.read(str(folder)))


def test_lines_grow_with_their_files(tmp_path: Path) -> None:
    reader = open_reader()
    assert read(reader, tmp_path / "nothing") == {}
    write(tmp_path / "train" / "events.out.tfevents.1", ("loss", 0, 2.0), ("loss", 1, float("nan")))
    write(tmp_path / "eval" / "events.out.tfevents.1", ("loss", 1, 1.5))
    assert read(reader, tmp_path) == {"loss": {"eval": ((1, 1.5),), "train": ((0, 2.0),)}}
    write(tmp_path / "train" / "events.out.tfevents.1", ("loss", 2, 1.0), ("rate", 2, 0.5))
    assert read(reader, tmp_path) == {
        "loss": {"eval": ((1, 1.5),), "train": ((0, 2.0), (2, 1.0))},
        "rate": {"train": ((2, 0.5),)},
    }


def test_many_points_are_thinned_from_end_to_end(tmp_path: Path) -> None:
    write(tmp_path / "events.tfevents", *(("loss", step, float(step)) for step in range(2000)))
    points = read(open_reader(), tmp_path)["loss"]["."]
    assert 150 < len(points) <= 401
    assert points[0][0] == 0
    assert points[-1][0] > 1900


def test_links_and_pipes_are_left_alone(tmp_path: Path) -> None:
    """What is beside them is read."""
    write(tmp_path / "elsewhere", ("secret", 1, 1.0))
    folder = tmp_path / "job"
    write(folder / "z.tfevents", ("loss", 1, 1.0))
    (folder / "link.tfevents").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "pipe.tfevents")
    assert read(open_reader(), folder) == {"loss": {".": ((1, 1.0),)}}


def test_folders_that_were_asked_for_long_ago_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_curves, "_MAX_JOBS", 2)
    reader = open_reader()
    for name in ("a", "b", "c"):
        read(reader, tmp_path / name)
    assert [folder.name for folder in reader._folders] == ["b", "c"]


def test_buckets_are_read_elsewhere() -> None:
    assert read(open_reader(), "gs://b/x") == {"gs://b/x": {}}
    assert read(open_reader(), "") == {}


@pytest.mark.parametrize(
    ("job_dir", "folder"),
    [("/a/b", Path("/a/b")), ("file:///a%20b", Path("/a b")), ("gs://b/x", None), ("", None)],
)
def test_only_local_folders_are_read(job_dir: str, folder: Path | None) -> None:
    assert find_local_folder(job_dir) == folder
