"""The job kind of batch predictions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from autoscaler import linux
from autoscaler.child_launcher import module_command
from autoscaler.node_process import LaunchSpec
from autoscaler.pools import PilotSpec
from batch.messages import (
    EMBEDDED,
    JOB_FOLDER,
    FailureStatus,
    JobCounts,
    JobOutcome,
    JobPhase,
    JobReport,
    JobRequest,
)
from serving.artifacts.child_environment import sanitize_environment
from serving.artifacts.trusted_sources import TrustedSources, check_local_uri
from serving.config import FRAMEWORK_ENVIRONMENT, ServeConfig
from serving.gateway.catalog.job_checks.prediction_checks import PredictionRules
from serving.gateway.catalog.jobs import PlannedVersion
from serving.gateway.jobs.job_kind import (
    JOB_PROCESS,
    AttemptResult,
    FailedAttempt,
    ForkPlan,
    FoundModels,
    JobAttempt,
    SucceededAttempt,
    TimeLimits,
)
from serving.gateway.jobs.kinds.prediction.beam_options import check_beam_options, require_beam
from serving.gateway.jobs.kinds.prediction.run_request import JobDefaults, build_run_request
from serving.gateway.jobs.log_lines import WORKER_TASK, JobLogLine
from serving.gateway.state.records import JobRecord, VersionRecord
from serving.resources import BatchOptions, Job, PredictionInput, PredictionOutput, format_count

JOB_COMMAND = module_command("batch")
# The same in a fork of a pilot.
_ENTRY = "batch.attempt_process:start"
# One on a cluster cancels its pipeline there; the others end at once.
_GRACE_SECONDS = 20.0
# Rates are averages over about this many seconds.
_RATE_WINDOW_SECONDS = 10.0

# The pilot that nodes of a version are forked from.
SelectPilot = Callable[[VersionRecord], PilotSpec]


class PredictionProgress:
    """Counts, rate, time left and trouble, from reports of the process; `now` is in seconds on any monotonic
    clock.
    """

    def __init__(self) -> None:
        self.phase: JobPhase | None = None
        self.counts = JobCounts()
        self.trouble = ""
        self._samples: deque[tuple[float, JobCounts]] = deque()

    def add_counts(self, counts: JobCounts, now: float) -> None:
        self.counts = counts
        self._samples.append((now, counts))
        while len(self._samples) > 2 and self._samples[1][0] <= now - _RATE_WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def has_counts(self) -> bool:
        return bool(self._samples)

    @property
    def records_per_second(self) -> float | None:
        """Counts predicted and rejected records; None while it is not known."""
        return self._recent_rate(lambda counts: counts.predictions + counts.errors)

    @property
    def seconds_left(self) -> float | None:
        """Until all input is read; None while it is not known."""
        rate = self._recent_rate(lambda counts: counts.bytes)
        if not rate:
            return None
        return max(0, self.counts.bytes_total - self.counts.bytes) / rate

    def _recent_rate(self, of: Callable[[JobCounts], int]) -> float | None:
        if len(self._samples) < 2:
            return None
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return max(0, of(last) - of(first)) / (end - start) if end > start else None


class PredictionAttempt:
    """A process of `python -m batch`, or its like in a fork of `pilot`."""

    def __init__(self, request: JobRequest, pilot: PilotSpec | None = None) -> None:
        self.run_request = request
        self.pilot = pilot
        self.progress = PredictionProgress()

    @property
    def request(self) -> bytes:
        return msgspec.json.encode(self.run_request)

    @property
    def phase(self) -> str:
        return self.progress.phase or ""

    @property
    def is_running(self) -> bool:
        return self.progress.phase not in (None, JobPhase.PREPARING)

    @property
    def output(self) -> PredictionOutput | None:
        counts = self.progress.counts
        return self._build_output(counts.predictions, counts.errors) if self.progress.has_counts else None

    def read_report(self, line: bytes, now: float) -> AttemptResult | None:
        try:
            report = msgspec.json.decode(line, type=JobReport)
        except msgspec.DecodeError:
            return None
        match report:
            case JobReport(done=JobOutcome() as done):
                output = self._build_output(done.predictions, done.errors)
                hours = done.worker_seconds / 3600
                return SucceededAttempt(msgspec.structs.replace(output, node_hours=hours))
            case JobReport(failed=FailureStatus() as failed):
                return FailedAttempt(failed.message, self._build_output(failed.predictions, failed.errors))
        self.progress.phase = report.phase or self.progress.phase
        if report.trouble is not None:
            self.progress.trouble = report.trouble
        if report.counts is not None:
            self.progress.add_counts(report.counts, now)
        return None

    def _build_output(self, predictions: int, errors: int) -> PredictionOutput:
        return PredictionOutput(
            output_path=self.run_request.output_path,
            prediction_count=format_count(predictions),
            error_count=format_count(errors),
        )


class PredictionKind(PredictionRules):
    """Batch predictions, at most `jobs` at a time.

    `environment` is that of the server's process, of which jobs get what `sanitize_environment` leaves.
    `select_pilot` finds the pilot that has imported what a version needs.
    Raises InvalidArgument for invalid settings.
    """

    log_task = WORKER_TASK
    oom_score = linux.JOB_OOM_SCORE

    def __init__(
        self,
        config: ServeConfig,
        environment: Mapping[str, str],
        select_pilot: SelectPilot,
        command: Sequence[str] = JOB_COMMAND,
        *,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        self.command = command
        self.grace_seconds = grace_seconds
        self.environment = {
            **sanitize_environment(environment, config.node_environment, storage=True),
            **FRAMEWORK_ENVIRONMENT,
            "PYTHONUNBUFFERED": "1",
        }
        self._select_pilot = select_pilot
        self._max_running = config.jobs
        self._defaults = JobDefaults.from_config(config)
        self._sources = TrustedSources.from_setting(config.trusted_sources)

    def list_permissions(self, project: str, job: Job) -> Sequence[tuple[str, str]]:
        """The role that allows a job is on its project: a model of another project needs a role there too."""
        given = job.prediction_input or PredictionInput()
        name = given.model_name or given.version_name
        if not name or name.startswith(f"projects/{project}/"):
            return ()
        return [(f"ml.{'versions' if '/versions/' in name else 'models'}.predict", name)]

    def check_settings(self, job: Job) -> None:
        require_beam()
        check_beam_options(job.batch_options or BatchOptions(), self._defaults.runner)
        if job.prediction_input is not None:
            self._defaults.interpreters.find_interpreter(job.prediction_input.runtime_version)
            self._check_folders(job.prediction_input)

    async def check_output_writable(self, job: Job) -> None:
        """The process claims its output folder itself, before it reads anything."""

    def find_time_limits(self, job: Job) -> TimeLimits:
        return TimeLimits()

    def choose_due(self, waiting: Sequence[JobRecord], running: Sequence[JobRecord]) -> Sequence[JobRecord]:
        return waiting[: max(0, self._max_running - len(running))]

    def explain_wait(
        self, record: JobRecord, waiting: Sequence[JobRecord], running: Sequence[JobRecord]
    ) -> str:
        return f"The job waits for one of {self._max_running} places (setting jobs), which are all taken."

    def build_next_output(self, record: JobRecord) -> PredictionOutput:
        """Each attempt predicts all records."""
        return self.build_first_output(record.job)

    def create_attempt(self, record: JobRecord, version: VersionRecord | None, folder: Path) -> JobAttempt:
        request = build_run_request(record, version, folder, self._defaults)
        if version is None or request.runner != EMBEDDED or request.model.interpreter:
            return PredictionAttempt(request)
        return PredictionAttempt(request, self._select_pilot(version))

    def plan_fork(self, attempt: JobAttempt) -> ForkPlan | None:
        """A model by its URI may need a framework that cannot be imported beside those of a pilot."""
        if not isinstance(attempt, PredictionAttempt) or attempt.pilot is None:
            return None
        arguments = {"request": msgspec.to_builtins(attempt.run_request)}
        launch = LaunchSpec(_ENTRY, arguments, self.environment, name=JOB_PROCESS, is_job=True)
        return ForkPlan(attempt.pilot, launch)

    async def direct(self, record: JobRecord, attempt: JobAttempt) -> None:
        """It knows all that it has to do."""

    def add_details(self, record: JobRecord) -> JobRecord:
        return record

    def create_cleanup(self, record: JobRecord, version: VersionRecord | None, folder: Path) -> JobAttempt:
        return PredictionAttempt(build_run_request(record, version, folder, self._defaults, clean=True))

    def describe_leftovers(self, record: JobRecord) -> str:
        given = record.job.prediction_input or PredictionInput()
        return f"Temporary files may be left in {given.output_path}/{JOB_FOLDER}"

    async def find_models(self, record: JobRecord, trial: str = "") -> FoundModels:
        return FoundModels()

    async def plan_version(self, record: JobRecord) -> PlannedVersion | None:
        return None

    def iter_extra_log_lines(self, folder: Path, since: int) -> Iterator[JobLogLine]:
        return iter(())

    def read_last_extra_lines(self, folder: Path, count: int) -> Sequence[str]:
        return ()

    def render_progress(self, record: JobRecord, attempt: JobAttempt | None) -> Mapping[str, Any]:
        output = record.job.prediction_output or PredictionOutput()
        progress = attempt.progress if isinstance(attempt, PredictionAttempt) else PredictionProgress()
        return {
            "predictions": int(output.prediction_count or 0),
            "errors": int(output.error_count or 0),
            "bytes": progress.counts.bytes,
            "bytesTotal": progress.counts.bytes_total,
            "workers": progress.counts.workers,
            "recordsPerSecond": _round_optional(progress.records_per_second),
            "secondsLeft": _round_optional(progress.seconds_left),
            **({"waitReason": progress.trouble} if progress.trouble else {}),
        }

    def _check_folders(self, given: PredictionInput) -> None:
        self._sources.check_uris([("prediction_input.uri", given.uri)])
        folders = self._defaults.folders
        check_local_uri(folders, "prediction_input.uri", given.uri, whole=True)
        for path in given.input_paths:
            check_local_uri(folders, "prediction_input.input_paths", path)
        # A job has a folder of its own in the one for its results.
        for path in (given.output_path, f"{given.output_path}/{JOB_FOLDER}"):
            check_local_uri(folders, "prediction_input.output_path", path)


def _round_optional(number: float | None) -> float | None:
    return None if number is None else round(number, 1)
