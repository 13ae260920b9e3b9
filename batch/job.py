"""One attempt at a job, from its request to its end: find, claim, plan, run, publish."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec
import psutil

from batch.failures import ErrorLimit, JobFailed
from batch.messages import (
    EMBEDDED,
    FailureStatus,
    JobCounts,
    JobOutcome,
    JobPhase,
    JobReport,
    JobRequest,
    ModelSource,
)
from batch.output_folder import OutputFolder
from batch.records import input_shards
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import FileInfo, FileStore
from serving.errors import FailedPrecondition, InvalidArgument, ServingError, Unavailable

if TYPE_CHECKING:
    from batch.beam.package_archive import PackageArchive
    from batch.beam.pipeline import RunTiming
    from batch.beam.runners import RemoteRunner, RunnerRequest

logger = logging.getLogger(__name__)

SendReport = Callable[[JobReport], None]

# Seconds that an attempt waits for the end of the previous one.
_LOCK_SECONDS = 30.0
_DATA_FORMATS = ("JSON", "TEXT", "TF_RECORD", "TF_RECORD_GZIP")
_OUTPUT_FORMATS = ("JSON", "CSV")
# How many of the most frequent errors a failure names.
_MOST_NAMED = 3


def run_request(request: JobRequest, send_report: SendReport) -> None:
    """Run one attempt; its last report says how it ended. Another attempt may recover from what it raises."""
    folders = LocalFolderPolicy(request.allowed_folders, request.refused_folders)
    files = FileStore(folders=folders)
    output = OutputFolder(files, request)
    with _hold_job_lock(Path(request.scratch_dir)):
        if request.clean:
            if request.runner != EMBEDDED:
                _cancel_attempts(request)
            output.delete_job_files()
            send_report(JobReport(done=JobOutcome(0, 0, 0.0, 0.0)))
            return
        try:
            send_report(JobAttempt(request, files, output, send_report).run())
        except (ServingError, JobFailed) as error:
            failed = (
                error.failure if isinstance(error, JobFailed) else FailureStatus(error.status, error.message)
            )
            if failed.status == Unavailable.status:
                raise
            _clean_and_report(failed, output, send_report)


class WorkerCounts(NamedTuple):
    """How many there are when a job begins, and how many there may be."""

    first: int
    most: int


class JobAttempt:
    def __init__(
        self, request: JobRequest, files: FileStore, output: OutputFolder, send_report: SendReport
    ) -> None:
        self._request = request
        self._files = files
        self._output = output
        self._send_report = send_report
        self._counts = JobCounts()

    def run(self) -> JobReport:
        """Run the job, and return how it ended. Raises ServingError or JobFailed when no results are kept."""
        request = self._request
        self._send_report(JobReport(phase=JobPhase.PREPARING))
        limit = _validate_request(request)
        # Before the input is listed: that of a finished job may be deleted.
        if (earlier := self._output.find_earlier_end()) is not None:
            return earlier
        items = input_shards.find_inputs(self._files, request.input_paths)
        if (earlier := self._output.claim()) is not None:
            return earlier
        workers = self._choose_workers(items)
        # Also for those that may join. So what is cut does not follow from what this machine has.
        shards = input_shards.plan_shards(items, workers.most, request.data_format)
        counts = {"file": len(items), "shard": len(shards), "worker": workers.first}
        logger.info(", ".join(input_shards.format_quantity(count, noun) for noun, count in counts.items()))
        folder = self._output.open_work_folder(_digest_plan(request, shards))
        size = sum(item.size for item in items)
        timing = self._run_pipeline(shards, folder, size, workers, limit)
        return self._publish_results(folder, len(shards), limit, timing)

    def _choose_workers(self, items: Sequence[FileInfo]) -> WorkerCounts:
        request = self._request
        if request.runner != EMBEDDED:
            return WorkerCounts(request.max_workers, request.max_workers)
        # After all checks: Beam takes seconds to import.
        from batch.beam import runners  # noqa: PLC0415

        most = input_shards.choose_worker_count(items, request.max_workers, request.data_format)
        return WorkerCounts(min(most, runners.count_cores()), most)

    def _run_pipeline(
        self,
        shards: Sequence[input_shards.Shard],
        folder: str,
        size: int,
        workers: WorkerCounts,
        limit: ErrorLimit,
    ) -> RunTiming:
        from batch.beam import embedded, pipeline, remote, runners, staging  # noqa: PLC0415
        from batch.beam.model_handler import SharedModel  # noqa: PLC0415
        from batch.beam.pipeline import PipelinePlan  # noqa: PLC0415
        from batch.beam.shard_queue import ShardQueue  # noqa: PLC0415
        from serving.runtimes.json_codec import AnswerStyle  # noqa: PLC0415

        request = self._request
        is_embedded = request.runner == EMBEDDED
        remote_runner = (
            None if is_embedded else runners.create_remote_runner(_build_runner_request(request, folder))
        )
        is_here = remote_runner is None or remote_runner.in_process
        progress = Path(request.scratch_dir, "meters")
        shutil.rmtree(progress, ignore_errors=True)
        plan = PipelinePlan(
            files=self._files,
            shards=input_shards.sort_by_size(shards, request.data_format),
            data_format=request.data_format,
            output_format=request.output_format,
            model=SharedModel(
                _adapt_model(request.model, here=is_here),
                request.cache_dir if is_here else "",
                request.cache_bytes,
                self._files.folders,
                self._write_packages(remote_runner, folder),
            ),
            parameters={"signature_name": request.signature_name} if request.signature_name else {},
            batch_size=request.batch_size,
            keys=request.keys,
            folder=folder,
            progress_folder=str(progress) if is_embedded else "",
            style=AnswerStyle(request.bare, request.long_decimals),
            queue=ShardQueue(progress / "queue") if is_embedded and workers.most > 1 else None,
        )
        if plan.queue is not None:
            plan.queue.fill(plan.shards)
        sealed = SealedProgress(self._files, folder, shards)
        context = pipeline.RunContext(
            limit, size, self._report_counts, self._report_trouble, self._end_stuck_job, sealed.read_counts
        )
        self._send_report(JobReport(phase=JobPhase.RUNNING))
        if remote_runner is None:
            # The attempt before may have been lost for want of what others took that had joined it.
            most = workers.most if request.attempt == 1 else workers.first
            return embedded.run_embedded(plan, workers.first, most, context)
        if request.attempt > 1:
            remote.cancel_attempts(remote_runner.engine)
        target = Path(request.scratch_dir, "packages")
        packages = partial(staging.build_archives, request.model, target, self._files.folders)
        return remote.run_remote(plan, remote_runner, packages, context)

    def _write_packages(self, remote_runner: RemoteRunner | None, folder: str) -> PackageArchive | None:
        """Where workers reach the installed packages; None where they need no such place."""
        from batch.beam.package_archive import write_packages  # noqa: PLC0415

        if remote_runner is None or remote_runner.in_process:
            return None
        # Those install the archives that the packages came from.
        if remote_runner.bare_workers:
            return None
        return write_packages(self._request.model, self._files, folder)

    def _publish_results(self, folder: str, count: int, limit: ErrorLimit, timing: RunTiming) -> JobReport:
        from batch.records import writers  # noqa: PLC0415

        self._send_report(JobReport(phase=JobPhase.PUBLISHING))
        shards = writers.read_sealed_shards(self._files, folder, count)
        predictions, stats = writers.sum_shards(shards)
        errors = sum(stats.values())
        if not predictions and not errors:
            paths = ", ".join(self._request.input_paths)
            raise InvalidArgument(f"There is nothing to predict: the files at {paths} hold blank lines only.")
        if reason := limit.explain_excess(predictions, errors, final=True):
            message = f"{reason} {_format_most_frequent(stats)}"
            raise JobFailed(FailureStatus("FAILED_PRECONDITION", message, predictions, errors))
        report = JobReport(done=JobOutcome(predictions, errors, timing.seconds, timing.worker_seconds))
        if not predictions:
            message = (
                f"All {errors} records failed; prediction.errors-* in {self._request.output_path} names "
                f"them. {_format_most_frequent(stats)}"
            )
            report = JobReport(failed=FailureStatus("INVALID_ARGUMENT", message, 0, errors))
        self._output.publish(shards, report)
        return report

    def _report_counts(self, counts: JobCounts) -> None:
        if counts != self._counts:
            self._send_report(JobReport(counts=counts))
            self._counts = counts

    def _report_trouble(self, trouble: str) -> None:
        # The log is what users follow; the report is for those who ask once.
        logger.warning("%s", trouble or "The job goes on.")
        self._send_report(JobReport(trouble=trouble))

    def _end_stuck_job(self, failed: FailureStatus) -> NoReturn:
        """End the process although workers are in the middle of a call, which cannot be interrupted."""
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        _clean_and_report(failed, self._output, self._send_report)
        os._exit(0)


def _validate_request(request: JobRequest) -> ErrorLimit:
    """Check the request, and return its error limit."""
    for name, value, known in (
        ("dataFormat", request.data_format, _DATA_FORMATS),
        ("outputDataFormat", request.output_format, _OUTPUT_FORMATS),
    ):
        if value not in known:
            raise InvalidArgument(f"Unknown {name} {value!r}; known: {', '.join(known)}.")
    if not request.model.model_dir and not request.model.uri and not request.model.prediction_class:
        raise InvalidArgument("The job names no model.")
    return ErrorLimit.parse(request.max_errors)


class SealedProgress:
    """How much of a job is in sealed shards."""

    def __init__(self, files: FileStore, folder: str, shards: Sequence[input_shards.Shard]) -> None:
        from batch.records.writers import SealedShards  # noqa: PLC0415

        self._sealed = SealedShards(files, folder)
        self._bytes = {shard.index: input_shards.count_bytes(shard) for shard in shards}

    def read_counts(self) -> JobCounts:
        """Nothing, if they cannot be read now."""
        try:
            sealed = self._sealed.list_shards()
        except (ServingError, OSError) as error:
            logger.debug("sealed shards are not known: %s", error)
            sealed = ()
        return JobCounts(
            predictions=sum(one.predictions for one in sealed),
            errors=sum(sum(one.stats.values()) for one in sealed),
            bytes=sum(self._bytes[one.shard] for one in sealed),
            bytes_total=sum(self._bytes.values()),
        )


def _digest_plan(request: JobRequest, shards: Sequence[input_shards.Shard]) -> str:
    """Equal for attempts whose shards have the same results."""
    same = msgspec.structs.replace(
        request, attempt=1, scratch_dir="", cache_dir="", cache_bytes=0, pipeline_options=()
    )
    return hashlib.sha256(msgspec.json.encode((same, shards))).hexdigest()[:16]


def _build_runner_request(request: JobRequest, folder: str) -> RunnerRequest:
    from batch.beam.runners import RunnerRequest  # noqa: PLC0415

    places = (request.model.uri, *request.input_paths, request.output_path)
    return RunnerRequest(
        runner=request.runner,
        arguments=request.pipeline_options,
        job=request.job,
        uid=request.uid,
        attempt=request.attempt,
        region=request.region,
        workers=request.max_workers,
        folder=folder,
        paths=tuple(filter(None, places)),
    )


def _cancel_attempts(request: JobRequest) -> None:
    from batch.beam import remote, runners  # noqa: PLC0415

    try:
        remote.cancel_attempts(runners.find_engine(_build_runner_request(request, folder="")))
    except InvalidArgument as error:
        # With such options nothing was started.
        logger.debug("no engine: %s", error)


def _adapt_model(model: ModelSource, *, here: bool) -> ModelSource:
    """The model as workers find it: other machines do not have the folders of this one.

    Raises InvalidArgument if they cannot compute it.
    """
    if model.interpreter and not here:
        raise InvalidArgument(
            f"The model is computed by {model.interpreter}, which workers on other machines do not have: run "
            "the job with the runner FnApiRunner."
        )
    return msgspec.structs.replace(model, uri="") if here and model.model_dir else _drop_local_folders(model)


def _drop_local_folders(model: ModelSource) -> ModelSource:
    return msgspec.structs.replace(model, model_dir="", packages=())


def _format_most_frequent(stats: Mapping[str, int]) -> str:
    named = [f"{count} times: {text}" for text, count in list(stats.items())[:_MOST_NAMED]]
    return "Most frequent: " + "; ".join(named) if named else ""


def _clean_and_report(failed: FailureStatus, output: OutputFolder, send_report: SendReport) -> None:
    try:
        output.delete_job_files()
    except (ServingError, OSError) as error:
        # An error of cleaning must not hide why the job failed.
        logger.warning("temporary files may be left: %s", error)
    send_report(JobReport(failed=failed))


@contextlib.contextmanager
def _hold_job_lock(scratch: Path) -> Iterator[None]:
    """Hold the job's lock: when it is taken, the process of the attempt before has ended."""
    scratch.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_SECONDS
    with (scratch / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FailedPrecondition(
                        f"Another attempt at this job is still at work ({scratch})."
                    ) from None
                time.sleep(0.1)
        yield
