"""The messages between the server and a job's process: JSON on its pipes. Imports nothing heavy.

`python -m batch` gets one JobRequest on stdin and writes one JobReport per line on stdout, the last with
`done` or `failed`; logs go to stderr.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

EMBEDDED = "FnApiRunner"
# In the output folder: whose that is, and the temporary files.
JOB_FOLDER = ".pilotlight"


# The exit code of an attempt that has lost workers: the next one may succeed.
EXIT_WORKERS_LOST = 70


class JobPhase(StrEnum):
    """The step that a job has begun."""

    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    PUBLISHING = "PUBLISHING"


class ModelSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the model comes from: `model_dir` is a local folder ready to load; without it `uri` is fetched.

    `framework` is a key of `serving.runtimes.FRAMEWORKS` or "" to infer it. `packages` are local folders
    with installed user packages, `package_uris` the archives they came from, which workers in Beam's
    container install; all workers on other machines need `uri`. `environment` has the environment variables
    of the model's code. `interpreter` is the Python of this machine that computes it, "" for the job's own.
    """

    model_dir: str = ""
    uri: str = ""
    framework: str = ""
    prediction_class: str = ""
    method: str = ""
    packages: tuple[str, ...] = ()
    package_uris: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    interpreter: str = ""


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a job. Field values are those of the API's PredictionInput, defaults filled in.

    `uid` (letters, digits) tells this job from all others; attempts count from 1. `batch_size` 0: not said.
    `max_errors` is "" (no limit), a number of records ("100") or a share of them ("0.1" or "10%").
    `keys` names key fields, which are copied to the result and not given to the model, `region` is for
    runners that have regions. `pipeline_options`
    are Beam's, as they are typed. `scratch_dir` is a local folder that is this job's alone. With `clean`, no
    work is done: all traces of the job's attempts in the output folder are deleted. `allowed_folders` and
    `refused_folders` are those of `serving.artifacts.local_folder_policy`; `bare` and `long_decimals` are the
    style of the predictions, see `serving.runtimes.json_codec`.
    """

    job: str
    uid: str
    attempt: int = 1
    model: ModelSource
    input_paths: tuple[str, ...]
    output_path: str
    data_format: str = "JSON"
    output_format: str = "JSON"
    batch_size: int = 0
    max_workers: int = 10
    signature_name: str = ""
    keys: tuple[str, ...] = ()
    max_errors: str = ""
    region: str = ""
    runner: str = EMBEDDED
    pipeline_options: tuple[str, ...] = ()
    scratch_dir: str
    cache_dir: str
    cache_bytes: int
    clean: bool = False
    allowed_folders: tuple[str, ...] = ()
    refused_folders: tuple[str, ...] = ()
    bare: bool = False
    long_decimals: bool = False


class JobCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a job is: records predicted and refused, input bytes (as stored) read of all, and workers."""

    predictions: int = 0
    errors: int = 0
    bytes: int = 0
    bytes_total: int = 0
    workers: int = 0

    def add_earlier(self, earlier: JobCounts) -> JobCounts:
        """With what was done before these were counted from nothing."""
        return JobCounts(
            self.predictions + earlier.predictions,
            self.errors + earlier.errors,
            min(self.bytes + earlier.bytes, self.bytes_total),
            self.bytes_total,
            self.workers,
        )


class JobOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a job: its final counts, and how long it took.

    `seconds` are those from the first record read to the last result written, `worker_seconds` how long its
    workers ran in all, their start included.
    """

    predictions: int
    errors: int
    seconds: float
    worker_seconds: float


class FailureStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why another attempt would not help: the name of the google.rpc code, and what to do.

    The counts are those of the records seen.
    """

    status: str
    message: str
    predictions: int = 0
    errors: int = 0


class JobReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of output; at most one of its fields is set. There is one each 10 seconds at least.

    `trouble` is what keeps the job from going on, "" once that is over.
    """

    phase: JobPhase | None = None
    counts: JobCounts | None = None
    trouble: str | None = None
    done: JobOutcome | None = None
    failed: FailureStatus | None = None
