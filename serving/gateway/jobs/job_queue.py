"""Runs queued jobs, at most `jobs` at a time; retries lost processes; resumes after a restart."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.child_launcher import module_command
from autoscaler.supervision import Supervisor
from batch.messages import JOB_FOLDER, FailureStatus, JobOutcome, JobPhase, JobReport, JobRequest
from serving.artifacts.trusted_sources import TrustedSources, check_local_uri
from serving.child_environment import sanitize_environment
from serving.config import FRAMEWORK_ENVIRONMENT, ServeConfig
from serving.errors import FailedPrecondition, InvalidArgument
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import jobs as rules
from serving.gateway.jobs.job_log import JobLog
from serving.gateway.jobs.job_process import (
    AttemptResult,
    JobProcessLauncher,
    LostProcess,
    ReportHandler,
)
from serving.gateway.jobs.kinds.prediction.beam_options import check_beam_options, require_beam
from serving.gateway.jobs.kinds.prediction.progress import AttemptProgress
from serving.gateway.jobs.kinds.prediction.run_request import JobDefaults, build_run_request
from serving.gateway.state.records import CatalogState, JobRecord
from serving.gateway.thread_pool import ThreadPool
from serving.resources import BatchOptions, Job, PredictionInput

logger = logging.getLogger(__name__)

JOB_COMMAND = module_command("batch")

# Lost attempts that make a job fail, and tries to remove what they have left behind.
_MAX_LOST_ATTEMPTS, _MAX_CLEANUP_ATTEMPTS = 4, 3
# For logs, and for the removal of files.
_THREADS = 4
# A removal reports nothing while it runs, however many files there are.
_CLEANUP_SILENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class JobTiming:
    """In seconds: how long a process may be silent, and how long it may take to end; the delays after the
    first lost attempt, the second and so on; how often counts are stored; and the delay before the server
    retries what failed for a reason of its own.
    """

    silence_seconds: float = 60.0
    grace_seconds: float = 3.0
    retry_delays: tuple[float, ...] = (1.0, 2.0, 4.0)
    save_interval: float = 2.0
    error_retry_delay: float = 10.0


@dataclass(slots=True)
class _ActiveJob:
    """A job that is worked on. `stop` is set when its process is to end; `holds` if it takes up a slot."""

    holds_slot: bool
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    progress: AttemptProgress = field(default_factory=AttemptProgress)
    saved_at: float = 0.0
    task: asyncio.Task[None] | None = None


class JobQueue:
    """Runs queued jobs, at most `jobs` at a time; retries lost processes; resumes after a restart.

    Each job that is worked on has a task of the application's supervisor. `environment` is that of the
    server's process, of which jobs get what `sanitized` leaves. Raises InvalidArgument for invalid settings.
    """

    def __init__(
        self,
        catalog: Catalog,
        supervisor: Supervisor,
        config: ServeConfig,
        environment: Mapping[str, str],
        *,
        command: Sequence[str] = JOB_COMMAND,
        timing: JobTiming | None = None,
    ) -> None:
        self._catalog = catalog
        self._supervisor = supervisor
        self._max_running = config.jobs
        self._folder = config.state_dir / "jobs"
        self._threads = ThreadPool("jobs", _THREADS)
        self._defaults = JobDefaults.from_config(config)
        self._timing = timing or JobTiming()
        self._sources = TrustedSources.from_setting(config.trusted_sources)
        environment = {
            **sanitize_environment(environment, config.node_environment, storage=True),
            **FRAMEWORK_ENVIRONMENT,
            "PYTHONUNBUFFERED": "1",
        }
        self._launcher = JobProcessLauncher(
            command, environment, self._timing.silence_seconds, self._timing.grace_seconds, self._threads
        )
        self._cleanup_launcher = JobProcessLauncher(
            command, environment, _CLEANUP_SILENCE_SECONDS, self._timing.grace_seconds, self._threads
        )
        self._active_jobs: dict[str, _ActiveJob] = {}
        self._accepting = False

    # ---- the queue

    def remove_stale_files(self, state: CatalogState) -> None:
        """Delete the files, but not the logs, of jobs that are not worked on (a kill may have left some)."""
        if not self._folder.is_dir():
            return
        ended = {record.uid: record.has_ended for record in state.jobs.values()}
        for folder in self._folder.iterdir():
            if folder.name not in ended:
                shutil.rmtree(folder, ignore_errors=True)
            elif ended[folder.name]:
                self._remove_work_files(folder.name)

    def resume(self) -> None:
        """Start work; what a stop or a kill has interrupted comes first."""
        self._accepting = True
        self.fail_orphaned_jobs(self._catalog.state)
        self.start_due_jobs()

    def start_due_jobs(self) -> None:
        """Start the jobs that are next. Those that only have to be ended need no slot."""
        if not self._accepting:
            return
        places = self._max_running - sum(running.holds_slot for running in self._active_jobs.values())
        for record in rules.list_unfinished_jobs(self._catalog.state):
            if record.name in self._active_jobs:
                continue
            holds = not rules.is_ending(record)
            if holds and places <= 0:
                continue
            places -= holds
            running = self._active_jobs[record.name] = _ActiveJob(holds)
            running.task = self._supervisor.start_task(
                "job", self._run_job(record.name, running), title=record.name
            )

    async def check_settings(self, job: Job) -> None:
        """Raises InvalidArgument or FailedPrecondition for what the settings do not allow a job."""
        require_beam()
        check_beam_options(job.batch_options or BatchOptions(), self._defaults.runner)
        if job.prediction_input is not None:
            self._defaults.interpreters.find_interpreter(job.prediction_input.runtime_version)
            await self._threads.run(self._check_folders, job.prediction_input)

    async def cancel(self, name: str) -> JobRecord:
        """End a job, if it has not ended."""
        record = await self._catalog.change(rules.cancel_job, name)
        self._stop_process(record)
        return record

    def fail_orphaned_jobs(self, state: CatalogState) -> None:
        """Mark jobs failing whose version is gone in the new state."""
        if not self._accepting:
            return
        for record in rules.list_unfinished_jobs(state):
            if record.target is None or rules.is_ending(record) or rules.find_target_version(state, record):
                continue
            # If it fails, the next change of the state retries it.
            self._supervisor.start_task("job", self._fail_for_deleted_version(record), title=record.name)

    async def suspend(self) -> None:
        """Stop all processes without a change of state; `resume` starts again at the next start."""
        self._accepting = False
        tasks = [running.task for running in self._active_jobs.values() if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_working_on(self, name: str) -> bool:
        """Whether work on a job is not over yet, whatever its state."""
        return name in self._active_jobs

    async def remove_logs(self, uids: Iterable[str]) -> None:
        for uid in uids:
            await self._threads.run(shutil.rmtree, self._folder / uid, ignore_errors=True)

    # ---- progress

    def with_current_counts(self, record: JobRecord) -> JobRecord:
        running = self._active_jobs.get(record.name)
        if running is None or record.has_ended or not running.progress.has_counts:
            return record
        counts = running.progress.counts
        return rules.with_counts(record, counts.predictions, counts.errors)

    def find_progress(self, record: JobRecord) -> AttemptProgress:
        """The progress is known only while a job is worked on."""
        running = self._active_jobs.get(record.name)
        return AttemptProgress() if running is None or record.has_ended else running.progress

    def job_log(self, record: JobRecord) -> JobLog:
        """The job's log, over all its attempts."""
        return JobLog(self._folder / record.uid / "log")

    # ---- one job

    async def _fail_for_deleted_version(self, record: JobRecord) -> None:
        reason = (
            f"The version {record.target} was deleted while the job was using it. Submit the job again, "
            "under another id, with a version that is there."
        )
        self._stop_process(await self._catalog.change(rules.mark_failing, record.name, reason))

    def _stop_process(self, record: JobRecord) -> None:
        running = self._active_jobs.get(record.name)
        if running is not None:
            running.stop.set()
        self.start_due_jobs()

    async def _run_job(self, name: str, running: _ActiveJob) -> None:
        try:
            while not self._catalog.state.jobs[name].has_ended:
                try:
                    await self._advance_job(self._catalog.state.jobs[name], running)
                except Exception as error:
                    again = f"{name}; tried again in {self._timing.error_retry_delay:g} s"
                    self._supervisor.report_error("job", error, again)
                    await asyncio.sleep(self._timing.error_retry_delay)
            record = self._catalog.state.jobs[name]
            logger.info("%s: %s %s", name, record.job.state, record.job.error_message)
            # What is left if it fails is removed at the next start of the server.
            await self._threads.run(self._remove_work_files, record.uid)
        finally:
            del self._active_jobs[name]
            self.start_due_jobs()

    async def _advance_job(self, record: JobRecord, running: _ActiveJob) -> None:
        if rules.is_ending(record):
            note = await self._clean_up(record)
            await self._catalog.change(rules.finish_job, record.name, note)
            return
        await self._wait_before_retry(record, running)
        if record.target is not None and rules.find_target_version(self._catalog.state, record) is None:
            await self._fail_for_deleted_version(record)
            return
        record = await self._catalog.change(rules.start_attempt, record.name)
        if record.has_ended or rules.is_ending(record):
            return
        await self._record_attempt_result(record, running, await self._run_attempt(record, running))

    async def _wait_before_retry(self, record: JobRecord, running: _ActiveJob) -> None:
        """Wait after a lost attempt, unless the job is ending."""
        if record.lost:
            pauses = self._timing.retry_delays
            try:
                async with asyncio.timeout(pauses[min(record.lost, len(pauses)) - 1]):
                    await running.stop.wait()
            except TimeoutError:
                pass

    async def _run_attempt(self, record: JobRecord, running: _ActiveJob) -> AttemptResult:
        try:
            await self.check_settings(record.job)
        except (FailedPrecondition, InvalidArgument) as error:  # a setting has changed
            return FailureStatus(error.status, error.message)
        log = self.job_log(record)
        if record.attempt > 1:
            await self._threads.run(log.add_note, f"attempt {record.attempt}")
        running.progress = AttemptProgress()

        async def handle_report(report: JobReport) -> None:
            await self._handle_report(record, running, report)

        version = rules.find_target_version(self._catalog.state, record)
        request = build_run_request(record, version, self._folder / record.uid, self._defaults)
        return await self._run_process(request, record, handle_report, running.stop)

    async def _run_process(
        self, request: JobRequest, record: JobRecord, hear: ReportHandler, stop: asyncio.Event
    ) -> AttemptResult:
        launch = self._cleanup_launcher if request.clean else self._launcher
        try:
            return await launch.run(request, self.job_log(record), hear, stop)
        except OSError as error:
            return LostProcess(f"The job's process could not be started: {error}.")

    async def _record_attempt_result(
        self, record: JobRecord, running: _ActiveJob, ending: AttemptResult
    ) -> None:
        # A finished attempt must not be repeated because its result was not stored.
        change, name = self._catalog.change_with_retry, record.name
        match ending:
            case JobOutcome(predictions=predictions, errors=errors, worker_seconds=worker_seconds):
                counts = {"predictions": predictions, "errors": errors}
                await change(rules.mark_succeeded, name, **counts, worker_seconds=worker_seconds)
            case FailureStatus():
                counts = {"predictions": ending.predictions, "errors": ending.errors}
                await change(rules.mark_failed, name, ending.message, **counts)
            case LostProcess(reason):
                await self._save_progress(record, running)
                if rules.is_ending(self._catalog.state.jobs[name]):
                    return  # it was stopped on purpose
                logger.warning("%s: attempt %d is lost. %s", name, record.attempt, reason)
                await self._threads.run(self.job_log(record).add_note, reason)
                await change(rules.record_lost_attempt, name, reason, _MAX_LOST_ATTEMPTS)

    async def _handle_report(self, record: JobRecord, running: _ActiveJob, report: JobReport) -> None:
        now = time.monotonic()
        begins = report.phase is JobPhase.RUNNING
        if report.phase is not None:
            running.progress.phase = report.phase
        if report.counts is not None:
            running.progress.add_counts(report.counts, now)
        if not begins and now < running.saved_at + self._timing.save_interval:
            return
        running.saved_at = now
        await self._save_progress(record, running)

    async def _save_progress(self, record: JobRecord, running: _ActiveJob) -> None:
        counts = running.progress.counts
        try:
            await self._threads.run(self.job_log(record).trim)
            await self._catalog.change(
                rules.record_progress,
                record.name,
                predictions=counts.predictions,
                errors=counts.errors,
                running=running.progress.phase not in (None, JobPhase.PREPARING),
            )
        except Exception:
            # That is no reason to end the attempt.
            logger.exception("the progress of %s cannot be written down", record.name)

    async def _clean_up(self, record: JobRecord) -> str:
        """Remove what the job's attempts have left behind; returns a note for its owner if some remains."""
        version = rules.find_target_version(self._catalog.state, record)
        request = build_run_request(record, version, self._folder / record.uid, self._defaults, clean=True)
        reason = ""
        for _ in range(_MAX_CLEANUP_ATTEMPTS):
            match await self._run_process(request, record, _ignore_report, asyncio.Event()):
                case JobOutcome():
                    return ""
                case FailureStatus(message=reason):
                    break
                case LostProcess(reason):
                    continue
        logger.warning("%s: temporary files may be left. %s", record.name, reason)
        return f"Temporary files may be left in {request.output_path}/.pilotlight: {reason}"

    def _check_folders(self, given: PredictionInput) -> None:
        self._sources.check_uris([("prediction_input.uri", given.uri)])
        folders = self._defaults.folders
        check_local_uri(folders, "prediction_input.uri", given.uri, whole=True)
        for path in given.input_paths:
            check_local_uri(folders, "prediction_input.input_paths", path)
        # A job has a folder of its own in the one for its results.
        for path in (given.output_path, f"{given.output_path}/{JOB_FOLDER}"):
            check_local_uri(folders, "prediction_input.output_path", path)

    def _remove_work_files(self, uid: str) -> None:
        """Remove all local files of a job but its log. Blocks."""
        JobLog(self._folder / uid / "log").trim()
        for entry in (self._folder / uid).glob("*"):
            if entry.name == "log":
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


async def _ignore_report(_: JobReport) -> None: ...
