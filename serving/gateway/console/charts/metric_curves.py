"""Follows the scalars in TensorFlow event files below the folders of training jobs."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from serving.gateway.thread_pool import ThreadPool
from tuning.metrics.event_curves import Curves, EventCurves
from tuning.metrics.event_files import LocalEventFolder

# Of each folder; and how many folders are remembered.
_MAX_FOLDERS_BELOW: Final = 300
_MAX_JOBS: Final = 20
_BUCKET_SCHEME: Final = "gs://"

ReadBucket = Callable[[str], Curves]


class MetricCurveReader:
    """The curves of the job folders that were asked for last; each reading goes on from the one before.

    `read_bucket` has what is known of a folder in a bucket.
    """

    def __init__(self, read_bucket: ReadBucket) -> None:
        self._read_bucket = read_bucket
        self._folders: OrderedDict[Path, EventCurves] = OrderedDict()
        self._thread = ThreadPool("metric curves", 1, queue=20)

    async def read(self, job_dir: str) -> Curves:
        """What there is in a job's folder; nothing where it has none."""
        if job_dir.startswith(_BUCKET_SCHEME):
            return self._read_bucket(job_dir)
        folder = find_local_folder(job_dir)
        return {} if folder is None else await self._read_folder(folder)

    async def _read_folder(self, folder: Path) -> Curves:
        followed = self._folders.get(folder)
        if followed is None:
            local = LocalEventFolder(folder, most_folders=_MAX_FOLDERS_BELOW)
            followed = self._folders[folder] = EventCurves(local)
        self._folders.move_to_end(folder)
        while len(self._folders) > _MAX_JOBS:
            self._folders.popitem(last=False)
        return await self._thread.run(_read_on, followed)


def _read_on(followed: EventCurves) -> Curves:
    with contextlib.suppress(OSError):  # of files that cannot be read nothing is shown
        followed.read()
    return followed.curves


def find_local_folder(job_dir: str) -> Path | None:
    """The folder of a job on this machine; None where it has none, or one in a bucket."""
    path = unquote(job_dir.removeprefix("file://")) if job_dir.startswith("file://") else job_dir
    return Path(path) if path.startswith("/") else None
