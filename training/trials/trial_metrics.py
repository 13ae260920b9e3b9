"""What a trial reports: read from hypertune's file, or from event files in its folder."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from serving.artifacts.storage import FileInfo, FileStore
from serving.artifacts.storage.file_system import parse_storage_uri
from serving.errors import ServingError
from training.messages import MetricPoint, TrainingRequest, TrialReport
from tuning.metrics.event_files import EventFiles, EventFolder, FoundFile, LocalEventFolder
from tuning.metrics.hypertune_file import HypertuneFile
from tuning.metrics.metric_curve import MetricCurve, MetricValue, SeenTag

_BUCKET_SCHEME = "gs://"
_RETRY_SECONDS = 30.0
# Tags that a message names.
_MOST_TAGS = 10
# Characters of a tag or a file's name in a message.
_MOST_CHARACTERS = 100


class BucketEventFolder:
    """A folder of Cloud Storage, whose objects are replaced as a whole."""

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")
        self._files = FileStore(retry_seconds=_RETRY_SECONDS)
        self._found: dict[str, FileInfo] = {}

    def list_files(self) -> Iterable[FoundFile]:
        with _raise_os_errors():
            found = self._files.list(self._uri)
        self._found = {item.uri.removeprefix(f"{self._uri}/"): item for item in found}
        return [FoundFile(path, item.size) for path, item in self._found.items()]

    def open(self, file: FoundFile, start: int) -> BinaryIO:
        with _raise_os_errors():
            return self._files.open(self._found[file.path], start)


@contextlib.contextmanager
def _raise_os_errors() -> Iterator[None]:
    try:
        yield
    except ServingError as error:
        raise OSError(error.message) from error


class TrialMetrics:
    """Follows the metric of one trial, which starts now. What is in its file comes before event files."""

    def __init__(self, request: TrainingRequest) -> None:
        self._tag = request.metric_tag
        self._file = request.metric_file
        self._job_dir = request.job_dir
        self._reports = HypertuneFile(Path(request.metric_file), self._tag)
        self.is_in_bucket = self._job_dir.startswith(_BUCKET_SCHEME)
        self._events = EventFiles(_choose_folder(self._job_dir), self._tag) if self._job_dir else None
        self._started_at = time.time()
        self._trouble = ""

    def has_reports(self) -> bool:
        """Whether the program reports to its file."""
        return self._reports.curve.final is not None

    def read(self) -> tuple[MetricPoint, ...]:
        """The points since the last call. Does not look into buckets, which takes too long."""
        self._reports.read()
        if not self.has_reports() and not self.is_in_bucket:
            self._read_events()
        return self._take_points()

    def read_event_points(self) -> tuple[MetricPoint, ...]:
        """The same of event files only, wherever they are."""
        self._read_events()
        return self._take_points()

    def build_last_report(self, trial: int) -> TrialReport:
        """What a trial that has ended without an error is worth, or why that is not known."""
        self._reports.read(at_end=True)
        if not self.has_reports():
            self._read_events(at_end=True)
        final, points = self._curve.final, self._take_points()
        if final is None:
            return TrialReport(trial, points, ended=True, failure=self._describe_absence())
        if not math.isfinite(final.value):
            failure = f'The metric "{self._tag}" was {final.value} at its last step, {final.step}.'
            return TrialReport(trial, points, ended=True, failure=failure)
        return TrialReport(trial, points, ended=True, final=self._to_point(final))

    @property
    def _curve(self) -> MetricCurve:
        return self._reports.curve if self._events is None or self.has_reports() else self._events.curve

    def _take_points(self) -> tuple[MetricPoint, ...]:
        return tuple(map(self._to_point, self._curve.take_finite()))

    def _to_point(self, value: MetricValue) -> MetricPoint:
        now = time.time()
        # Programs may write any time, also one that is no number.
        written = value.time if self._started_at <= value.time <= now else now
        return MetricPoint(value.step, value.value, round(max(0.0, written - self._started_at), 3))

    def _read_events(self, *, at_end: bool = False) -> None:
        if self._events is None:
            return
        try:
            self._events.read(at_end=at_end)
        except OSError as error:
            self._trouble = f" The event files could not be read: {error}."

    def _describe_absence(self) -> str:
        below = f" or in event files below {self._job_dir}" if self._job_dir else ""
        seen = [*self._reports.seen_tags, *(self._events.seen_tags if self._events is not None else [])]
        return (
            f'The trial has not reported its metric. No value of the tag "{self._tag}" was in the file of '
            f"hypertune ({self._file}, CLOUD_ML_HP_METRIC_FILE){below}. {_describe_tags(seen)}{self._trouble}"
        )


def _choose_folder(job_dir: str) -> EventFolder:
    if job_dir.startswith(_BUCKET_SCHEME):
        return BucketEventFolder(job_dir)
    return LocalEventFolder(Path(parse_storage_uri(job_dir)[1]))


def _describe_tags(seen: Sequence[SeenTag]) -> str:
    if not seen:
        return "No tag was seen at all."
    texts = [
        f'"{_shorten(one.tag)}" (last {one.value:g}, in {_shorten(one.file)})' for one in seen[:_MOST_TAGS]
    ]
    more = f" and {len(seen) - _MOST_TAGS} more" if len(seen) > _MOST_TAGS else ""
    return f"Tags seen: {', '.join(texts)}{more}."


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
