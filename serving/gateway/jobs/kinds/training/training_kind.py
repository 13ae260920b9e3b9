"""The job kind of training."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from autoscaler import machine
from autoscaler.child_launcher import LIFELINE_PLACEHOLDER
from serving.artifacts.trusted_sources import TrustedSources, check_local_uri
from serving.config import ServeConfig
from serving.container_engine import NO_ENGINE
from serving.errors import FailedPrecondition, InvalidArgument, Unimplemented, field_error
from serving.gateway.catalog.job_checks.training_checks import (
    TrainingRules,
    check_training_input,
    check_training_options,
    parse_duration,
)
from serving.gateway.catalog.job_checks.training_replicas import (
    ALGORITHM_PACKAGE,
    choose_algorithm_framework,
    find_algorithm,
    is_tpu,
    list_replica_groups,
    master_image,
)
from serving.gateway.catalog.jobs import PlannedVersion
from serving.gateway.jobs.job_kind import (
    AttemptResult,
    FailedAttempt,
    ForkPlan,
    FoundModels,
    JobAttempt,
    LostProcess,
    SucceededAttempt,
    TimeLimits,
)
from serving.gateway.jobs.kinds.training import admission
from serving.gateway.jobs.kinds.training.admission import Room
from serving.gateway.jobs.kinds.training.deployment import choose_model, find_models, plan_version
from serving.gateway.jobs.kinds.training.fork_plan import SelectPilot, plan_fork
from serving.gateway.jobs.kinds.training.gpus import DeviceLender, resolve_gpu_setting
from serving.gateway.jobs.kinds.training.job_dir import check_job_dir
from serving.gateway.jobs.kinds.training.replica_log import iter_log_lines, read_last_lines
from serving.gateway.jobs.kinds.training.run_request import (
    RunLimits,
    TrainingDefaults,
    build_training_request,
)
from serving.gateway.jobs.kinds.training.trials.tuning_director import BEST_TRIAL, TuningDirector
from serving.gateway.jobs.kinds.training.trials.tuning_output import add_trials
from serving.gateway.jobs.log_lines import SERVICE_TASK, JobLogLine
from serving.gateway.process_slots import ProcessSlots
from serving.gateway.state.records import JobRecord, VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.names import ModelName
from serving.resources import (
    BuiltInAlgorithmOutput,
    Job,
    Scheduling,
    TrainingInput,
    TrainingOptions,
    TrainingOutput,
    resource_from_json,
)
from training.messages import (
    ReplicaEvent,
    ReplicaReport,
    TrainingFailure,
    TrainingPhase,
    TrainingReport,
    TrainingRequest,
    TrainingSuccess,
    TrialReport,
    TrialSettings,
)

logger = logging.getLogger(__name__)

TRAINING_COMMAND = (sys.executable, "-m", "training", LIFELINE_PLACEHOLDER)
_SEATS_PER_CORE = 4
# Beyond the time that replicas have after SIGTERM: containers take some to be removed.
_SUPERVISOR_SECONDS = 20.0
_THREADS = 2
# Listings of models that run, and that wait: anybody who may see a job can ask for them.
_LISTINGS, _LISTINGS_QUEUE = 2, 30


class TrainingAttempt:
    """A supervisor, `python -m training`. `output` is what came of the attempts before.

    `has_begun` is set when it is RUNNING; reports of trials are handed to `on_trial`.
    """

    def __init__(self, request: TrainingRequest, output: TrainingOutput) -> None:
        self.training_request = request
        self._before = output
        self._seconds = 0.0
        self._phase: TrainingPhase | None = None
        self._loss = ""
        self.has_begun = asyncio.Event()
        self.on_trial: Callable[[TrialReport], None] = lambda _: None
        self.replicas: dict[str, ReplicaReport] = {}

    @property
    def request(self) -> bytes:
        return msgspec.json.encode(self.training_request)

    @property
    def phase(self) -> str:
        return self._phase or ""

    @property
    def trial_settings(self) -> TrialSettings | None:
        return self.training_request.trials

    @property
    def is_running(self) -> bool:
        return self._phase is TrainingPhase.RUNNING

    @property
    def output(self) -> TrainingOutput | None:
        return self._add_seconds(self._seconds) if self._seconds else None

    def read_report(self, line: bytes, now: float) -> AttemptResult | None:
        try:
            report = msgspec.json.decode(line, type=TrainingReport)
        except msgspec.DecodeError:
            return None
        match report:
            case TrainingReport(done=TrainingSuccess() as done):
                return SucceededAttempt(self._build_final_output(done.replica_seconds))
            case TrainingReport(failed=TrainingFailure() as failed):
                return FailedAttempt(failed.message, self._add_seconds(failed.replica_seconds))
        self._phase = report.phase or self._phase
        if self.is_running:
            self.has_begun.set()
        if report.trial is not None:
            self.on_trial(report.trial)
        if report.heartbeat is not None:
            self._seconds = report.heartbeat.replica_seconds
        if report.replica is not None:
            self.replicas[report.replica.task] = report.replica
        return LostProcess(self._loss) if self._loss else None

    def mark_lost(self, reason: str) -> None:
        """Have the process count as lost with its next report, which comes within seconds."""
        self._loss = reason

    def _build_final_output(self, seconds: float) -> TrainingOutput:
        output = self._add_seconds(seconds)
        if not self.training_request.module.startswith(ALGORITHM_PACKAGE):
            return output
        built = BuiltInAlgorithmOutput(
            framework=choose_algorithm_framework(self.training_request.module, self.training_request.args),
            # Each trial has its own.
            model_path=(
                "" if self.training_request.trials else f"{self.training_request.job_dir.rstrip('/')}/model"
            ),
            python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        )
        return msgspec.structs.replace(output, built_in_algorithm_output=built)

    def _add_seconds(self, seconds: float) -> TrainingOutput:
        units = self._before.consumed_ml_units + seconds / 3600
        return msgspec.structs.replace(self._before, consumed_ml_units=round(units, 6))


class TrainingKind(TrainingRules):
    """Training jobs, as many at a time as there is room for all their replicas.

    `environment` is that of the server's process, of which jobs get what `sanitize_environment` leaves.
    `director` runs trials, `select_pilot` finds the pilot that supervisors are forked from. Raises
    InvalidArgument for invalid settings.
    """

    log_task = SERVICE_TASK
    oom_score = 0  # the supervisor ends after its replicas

    def __init__(
        self,
        config: ServeConfig,
        environment: Mapping[str, str],
        director: TuningDirector,
        select_pilot: SelectPilot,
        command: Sequence[str] = TRAINING_COMMAND,
    ) -> None:
        self.command = command
        self._director = director
        self._select_pilot = select_pilot
        self._defaults = TrainingDefaults.from_config(config, environment)
        self.environment = self._defaults.environment
        self.grace_seconds = self._defaults.grace_seconds + _SUPERVISOR_SECONDS
        self._sources = TrustedSources.from_setting(config.trusted_sources)
        devices = resolve_gpu_setting(config.gpus)
        self._lender = DeviceLender(devices)
        self._total = Room(
            config.training_seats or _SEATS_PER_CORE * machine.count_cores(),
            config.training_memory_bytes,
            len(devices),
        )
        self._threads = ThreadPool("job folders", _THREADS)
        self._listings = ProcessSlots("models of jobs", _LISTINGS, queue=_LISTINGS_QUEUE)

    def list_permissions(self, project: str, job: Job) -> Sequence[tuple[str, str]]:
        deploy = (job.training_options or TrainingOptions()).deploy
        return () if deploy is None else [("ml.versions.create", str(ModelName(project, deploy.model)))]

    def check_settings(self, job: Job) -> None:
        given, options = job.training_input or TrainingInput(), job.training_options or TrainingOptions()
        check_training_input(given)
        check_training_options(options)
        if master_image(given) and find_algorithm(given) is None:
            self._check_images(given)
        if is_tpu(given):
            raise field_error(
                FailedPrecondition,
                "training_input.scale_tier",
                "This server has no TPUs. Choose a tier and machine types without.",
            )
        self._sources.check_uris([("training_input.package_uris", uri) for uri in given.package_uris])
        for uri in given.package_uris:
            check_local_uri(self._defaults.folders, "training_input.package_uris", uri)
        if given.job_dir:
            check_local_uri(self._defaults.folders, "training_input.job_dir", given.job_dir, whole=True)
        self._defaults.interpreters.find_interpreter(given.runtime_version)
        admission.check_fits(given, options, self._total)

    def _check_images(self, given: TrainingInput) -> None:
        """Raises Unimplemented where no containers are run, InvalidArgument and FailedPrecondition."""
        if self._defaults.engine is None:
            raise field_error(
                Unimplemented,
                "training_input.master_config.image_uri",
                f"{NO_ENGINE} Without one, packageUris and pythonModule name a program of Python, and the "
                "image of a built-in algorithm trains with this server's own.",
            )
        if ":" in unquote(given.job_dir.removeprefix("file://")) and not given.job_dir.startswith("gs://"):
            raise field_error(
                InvalidArgument,
                "training_input.job_dir",
                f"{given.job_dir} has a colon, at which engines end the path of what they mount.",
            )
        for group in list_replica_groups(given):
            field = f"training_input.{group.field}_config"
            self._sources.check_image(f"{field}.image_uri", group.config.image_uri or master_image(given))
            if group.gpus:
                raise field_error(
                    FailedPrecondition,
                    f"{field}.accelerator_config",
                    "GPUs are not passed on to containers. Leave acceleratorConfig out to train without.",
                )

    async def check_output_writable(self, job: Job) -> None:
        given = job.training_input or TrainingInput()
        if given.job_dir:
            await check_job_dir(given.job_dir, self.environment, self._threads)

    def choose_due(self, waiting: Sequence[JobRecord], running: Sequence[JobRecord]) -> Sequence[JobRecord]:
        self._lender.keep_only({record.name for record in running})
        return admission.choose_due(waiting, running, self._total)

    def explain_wait(
        self, record: JobRecord, waiting: Sequence[JobRecord], running: Sequence[JobRecord]
    ) -> str:
        return admission.explain_wait(record, waiting, running, self._total)

    def find_time_limits(self, job: Job) -> TimeLimits:
        scheduling = (job.training_input or TrainingInput()).scheduling or Scheduling()
        try:
            return TimeLimits(
                waiting=parse_duration(scheduling.max_wait_time),
                running=parse_duration(scheduling.max_running_time),
            )
        except ValueError:  # a stored job that today's checks refuse: it fails when it starts
            return TimeLimits()

    def build_next_output(self, record: JobRecord) -> TrainingOutput:
        """What attempts before have used counts."""
        return record.job.training_output or TrainingOutput()

    def create_attempt(self, record: JobRecord, version: VersionRecord | None, folder: Path) -> JobAttempt:
        given, options = _read_input(record), record.job.training_options or TrainingOptions()
        needed = admission.measure_record(record, self._total)
        parallel = admission.count_parallel(given, options, self._total)
        devices = self._lender.lend(record.name, needed.gpus)
        limits = RunLimits(devices, needed.memory_bytes // parallel, parallel)
        request = build_training_request(record, folder, self._defaults, limits)
        return TrainingAttempt(request, self.build_next_output(record))

    def plan_fork(self, attempt: JobAttempt) -> ForkPlan | None:
        if not isinstance(attempt, TrainingAttempt):
            return None
        return plan_fork(attempt.training_request, self._select_pilot, self.environment)

    async def direct(self, record: JobRecord, attempt: JobAttempt) -> None:
        if record.tuning is None or not isinstance(attempt, TrainingAttempt):
            return
        try:
            await attempt.has_begun.wait()
            await self._director.run_trials(record, attempt)
        except Exception as error:
            logger.exception("the trials of %s cannot go on", record.name)
            attempt.mark_lost(f"Its trials could not go on: {error}.")

    def create_cleanup(
        self, record: JobRecord, version: VersionRecord | None, folder: Path
    ) -> JobAttempt | None:
        return None

    def describe_leftovers(self, record: JobRecord) -> str:
        return ""

    async def find_models(self, record: JobRecord, trial: str = "") -> FoundModels:
        async with self._listings.take():
            return await self._list_models(record, trial)

    async def _list_models(self, record: JobRecord, trial: str) -> FoundModels:
        folder = self._find_job_dir(record, trial)
        if not folder:
            return FoundModels()
        return FoundModels(folder, await find_models(folder, self._defaults.folders, self.environment))

    async def plan_version(self, record: JobRecord) -> PlannedVersion | None:
        options = (record.job.training_options or TrainingOptions()).deploy
        if options is None:
            return None
        found = await self._list_models(record, BEST_TRIAL if record.tuning is not None else "")
        return plan_version(record, options, choose_model(found.models, found.folder, options.path))

    def add_details(self, record: JobRecord) -> JobRecord:
        found = self._director.find_trials(record)
        if found is None:
            return record
        output = add_trials(record.job.training_output or TrainingOutput(), _read_input(record), found)
        return msgspec.structs.replace(
            record, job=msgspec.structs.replace(record.job, training_output=output)
        )

    def _find_job_dir(self, record: JobRecord, trial: str) -> str:
        """The folder of a job, or of one of its trials; "" for none. Raises FailedPrecondition, NotFound."""
        folder = _read_input(record).job_dir
        return f"{folder.rstrip('/')}/{self._director.find_trial_number(record, trial)}" if trial else folder

    def iter_extra_log_lines(self, folder: Path, since: int) -> Iterator[JobLogLine]:
        return iter_log_lines(folder / "logs", since)

    def read_last_extra_lines(self, folder: Path, count: int) -> Sequence[str]:
        return read_last_lines(folder / "logs", count)

    def render_progress(self, record: JobRecord, attempt: JobAttempt | None) -> Mapping[str, Any]:
        replicas = attempt.replicas if isinstance(attempt, TrainingAttempt) else {}
        rendered = {"replicas": [_render_replica(report) for report in replicas.values()]}
        found = self._director.find_trials(record)
        return rendered if found is None else {**rendered, "trials": found.count_states()}


def _read_input(record: JobRecord) -> TrainingInput:
    """Of a job that has ended only what was sent is kept."""
    return record.job.training_input or resource_from_json(TrainingInput, record.sent_input)


def _render_replica(report: ReplicaReport) -> Mapping[str, Any]:
    return {
        "task": report.task,
        "state": "ENDED" if report.event is ReplicaEvent.ENDED else "RUNNING",
        "exitCode": report.exit_code,
        "restarts": report.restarts,
        "jobRestarts": report.job_restarts,
    }
