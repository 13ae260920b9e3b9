"""`pilotlight local batch`."""

from __future__ import annotations

import importlib.util
import secrets
import time
from typing import TYPE_CHECKING

from serving.cli.batch_flags import BatchFlags
from serving.cli.lines import note
from serving.cli.options import ModelCode, ModelDirOption, absolute, given
from serving.cli.output import Output
from serving.cli.parsing import items
from serving.cli.sources import prepared
from serving.cli.standing import Standing, display
from serving.config import NodeConfig
from serving.errors import FailedPrecondition
from serving.scratch import scratch_folder

if TYPE_CHECKING:
    from batch.messages import JobCounts, JobOutcome, JobReport, JobRequest
    from serving.runtimes import LoadSpec

_SECONDS_PER_HOUR = 3600


def batch(output: Output, model_dir: ModelDirOption, *, code: ModelCode, batch: BatchFlags) -> None:
    """Predict whole files with a model folder, without a server.

    Ctrl-C ends it and leaves nothing of its output.

    Example: pilotlight local batch --model-dir ./flowers --input-paths 'in/*' --output-path out
    """
    start = time.monotonic()
    outcome = run(code.settings(model_dir), batch)
    note(f"Results: {batch.outputs}/prediction.results-*")
    if outcome.errors:
        note(f"Errors: {batch.outputs}/prediction.errors-*.jsonl")
    output.done(
        f"{outcome.predictions:,} predictions, {outcome.errors:,} errors in "
        f"{time.monotonic() - start:.1f} s.",
        {
            "outputPath": batch.outputs,
            "predictionCount": str(outcome.predictions),
            "errorCount": str(outcome.errors),
            "nodeHours": outcome.worker_seconds / _SECONDS_PER_HOUR,
        },
    )


def run(config: NodeConfig, flags: BatchFlags) -> JobOutcome:
    """Run a batch prediction in a process of its own, and show how far it is.

    Raises FailedPrecondition without Apache Beam, and whatever error the job fails with.
    """
    if importlib.util.find_spec("apache_beam") is None:
        raise FailedPrecondition("Batch needs Apache Beam: pip install 'pilotlight[batch]'")
    from serving.cli import batch_process  # noqa: PLC0415  start-up time of the other commands
    from serving.runtimes.detect import detect_framework  # noqa: PLC0415

    with (
        scratch_folder("batch") as scratch,
        prepared(config, note) as source,
    ):
        if not source.framework:
            detect_framework(source.model_dir, source.prediction_class)  # what is no model is refused at once
        meter = Meter()
        with display("Batch prediction") as shown:
            return batch_process.run(
                request(source, config, flags, str(scratch)),
                lambda report: shown.show(meter.read(report, time.monotonic())),
                shown.log,
            )


def request(source: LoadSpec, config: NodeConfig, flags: BatchFlags, scratch: str) -> JobRequest:
    """What the job's process is told; `scratch` is a folder that is its alone."""
    import msgspec  # noqa: PLC0415  start-up time

    from batch.messages import JobRequest, ModelSource  # noqa: PLC0415  start-up time

    uid = secrets.token_hex(8)
    least = JobRequest(
        job=f"local_{uid}",
        uid=uid,
        model=ModelSource(
            model_dir=str(source.model_dir.absolute()),
            uri=absolute(config.model_dir),
            framework=source.framework,
            prediction_class=source.prediction_class,
            method=source.method,
            packages=tuple(str(folder.absolute()) for folder in source.packages),
            package_uris=tuple(absolute(uri) for uri in items(config.package_uris)),
            interpreter="" if source.external is None else source.external.interpreter,
        ),
        input_paths=tuple(flags.inputs),
        output_path=flags.outputs,
        data_format=flags.data_format.wire,
        scratch_dir=scratch,
        cache_dir=str(config.cache_dir.expanduser()),
        cache_bytes=config.cache_bytes,
        bare=config.single_output == "bare",
        long_decimals=config.long_decimals,
    )
    options = given(
        output_format=flags.output_format and flags.output_format.wire,
        batch_size=flags.batch_size,
        max_workers=flags.max_worker_count,
        signature_name=flags.signature_name,
        keys=flags.keys,
        max_errors=flags.max_errors,
        runner=flags.runner,
        pipeline_options=flags.pipeline_options,
    )
    return msgspec.structs.replace(least, **options)


class Meter:
    """Makes of a job's reports how far it is, its rate and the time it has left."""

    def __init__(self) -> None:
        self._state = "STARTING"
        self._begun: float | None = None
        self._counts: JobCounts | None = None

    def read(self, report: JobReport, now: float) -> Standing:
        """How far it is after a report; `now` is in seconds since any time."""
        if report.phase is not None:
            self._state = report.phase.value
            if self._begun is None and self._state == "RUNNING":
                self._begun = now
        counts = self._counts = report.counts or self._counts
        seconds = 0.0 if self._begun is None else now - self._begun
        if counts is None or not seconds:
            return Standing(self._state)
        return Standing(
            state=self._state,
            predictions=counts.predictions,
            errors=counts.errors,
            bytes=counts.bytes,
            bytes_total=counts.bytes_total,
            rate=(counts.predictions + counts.errors) / seconds,
            seconds_left=seconds * (counts.bytes_total / counts.bytes - 1) if counts.bytes else None,
        )
