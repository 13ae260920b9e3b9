"""`pilotlight local batch`."""

from __future__ import annotations

import importlib.util
import secrets
import time
from typing import TYPE_CHECKING

from serving.cli.command_output import CommandOutput
from serving.cli.console import print_note
from serving.cli.flags.batch_flags import BatchFlags
from serving.cli.flags.common_flags import LocalModelFlags, ModelDirOption, drop_none, make_absolute
from serving.cli.formats.value_parsers import parse_list
from serving.cli.model_source import prepare_model
from serving.cli.progress.job_progress import ProgressSnapshot, open_progress_display
from serving.config import NodeConfig
from serving.errors import FailedPrecondition
from serving.scratch_folders import scratch_folder

if TYPE_CHECKING:
    from batch.messages import JobCounts, JobOutcome, JobReport, JobRequest
    from serving.runtimes import LoadSpec

_SECONDS_PER_HOUR = 3600


def predict_files_locally(
    output: CommandOutput, model_dir: ModelDirOption, *, code: LocalModelFlags, batch: BatchFlags
) -> None:
    """Predict whole files with a model folder, without a server.

    Ctrl-C ends it and leaves nothing of its output.

    Example: pilotlight local batch --model-dir ./flowers --input-paths 'in/*' --output-path out
    """
    start = time.monotonic()
    outcome = run_local_batch(code.load_node_settings(model_dir), batch)
    print_note(f"Results: {batch.absolute_output}/prediction.results-*")
    if outcome.errors:
        print_note(f"Errors: {batch.absolute_output}/prediction.errors-*.jsonl")
    output.report_change(
        f"{outcome.predictions:,} predictions, {outcome.errors:,} errors in "
        f"{time.monotonic() - start:.1f} s.",
        {
            "outputPath": batch.absolute_output,
            "predictionCount": str(outcome.predictions),
            "errorCount": str(outcome.errors),
            "nodeHours": outcome.worker_seconds / _SECONDS_PER_HOUR,
        },
    )


def run_local_batch(config: NodeConfig, flags: BatchFlags) -> JobOutcome:
    """Run a batch prediction in a process, and show its progress.

    Raises FailedPrecondition without Apache Beam, and whatever error the job fails with.
    """
    if importlib.util.find_spec("apache_beam") is None:
        raise FailedPrecondition("Batch needs Apache Beam: pip install 'pilotlight[batch]'")
    from serving.cli.local import batch_process  # noqa: PLC0415  start-up time of the other commands
    from serving.runtimes.framework_detection import detect_framework  # noqa: PLC0415

    with (
        scratch_folder("batch") as scratch,
        prepare_model(config, print_note) as source,
    ):
        if not source.framework:
            detect_framework(
                source.model_dir, source.prediction_class
            )  # refuse what is no model before a process starts
        estimator = ProgressEstimator()
        with open_progress_display("Batch prediction") as shown:
            return batch_process.run_batch_process(
                build_batch_request(source, config, flags, str(scratch)),
                lambda report: shown.show(estimator.update(report, time.monotonic())),
                shown.log,
            )


def build_batch_request(source: LoadSpec, config: NodeConfig, flags: BatchFlags, scratch: str) -> JobRequest:
    """The request for the job's process; `scratch` is a folder for that process only."""
    import msgspec  # noqa: PLC0415  start-up time

    from batch.messages import JobRequest, ModelSource  # noqa: PLC0415  start-up time

    uid = secrets.token_hex(8)
    request = JobRequest(
        job=f"local_{uid}",
        uid=uid,
        model=ModelSource(
            model_dir=str(source.model_dir.absolute()),
            uri=make_absolute(config.model_dir),
            framework=source.framework,
            prediction_class=source.prediction_class,
            method=source.method,
            packages=tuple(str(folder.absolute()) for folder in source.packages),
            package_uris=tuple(make_absolute(uri) for uri in parse_list(config.package_uris)),
            interpreter="" if source.external is None else source.external.interpreter,
        ),
        input_paths=tuple(flags.absolute_inputs),
        output_path=flags.absolute_output,
        data_format=flags.data_format.wire,
        scratch_dir=scratch,
        cache_dir=str(config.cache_dir.expanduser()),
        cache_bytes=config.cache_bytes,
        bare=config.single_output == "bare",
        long_decimals=config.long_decimals,
    )
    options = drop_none(
        output_format=flags.output_format and flags.output_format.wire,
        batch_size=flags.batch_size,
        max_workers=flags.max_worker_count,
        signature_name=flags.signature_name,
        keys=flags.keys,
        max_errors=flags.max_errors,
        runner=flags.runner,
        pipeline_options=flags.pipeline_options,
    )
    return msgspec.structs.replace(request, **options)


class ProgressEstimator:
    """Computes progress, rate and time left from a job's reports."""

    def __init__(self) -> None:
        self._state = "STARTING"
        self._start_time: float | None = None
        self._counts: JobCounts | None = None

    def update(self, report: JobReport, now: float) -> ProgressSnapshot:
        """The progress after a report; `now` is in seconds of a monotonic clock."""
        if report.phase is not None:
            self._state = report.phase.value
            if self._start_time is None and self._state == "RUNNING":
                self._start_time = now
        counts = self._counts = report.counts or self._counts
        seconds = 0.0 if self._start_time is None else now - self._start_time
        if counts is None or not seconds:
            return ProgressSnapshot(self._state)
        return ProgressSnapshot(
            state=self._state,
            predictions=counts.predictions,
            errors=counts.errors,
            bytes=counts.bytes,
            bytes_total=counts.bytes_total,
            rate=(counts.predictions + counts.errors) / seconds,
            seconds_left=seconds * (counts.bytes_total / counts.bytes - 1) if counts.bytes else None,
        )
