"""The pipeline of a job: Read | Decode | Predict | Encode | Write | Seal, the same on every runner.

What flows from Read to Write is a block of records, so Beam's cost per element is paid once per block. The
only shuffles are the one that hands out shards, which carries their names, and the one that brings together
what bundles wrote of a shard that is in several, which carries file names: blocks never cross one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.ml.inference.base import PredictionResult, RunInference
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from batch import failures
from batch.beam.model_handler import RuntimeHandler, SharedModel
from batch.beam.progress import ProgressTotals, ProgressWriter
from batch.beam.shard_queue import ShardQueue
from batch.failures import IN_TEXT_ONLY, ErrorLimit, JobFailed, StepErrors
from batch.messages import FailureStatus, JobCounts
from batch.records import readers, writers
from batch.records.blocks import BatchedBlock, EncodedBlock, RecordBlock, ShardPiece
from batch.records.decode import RecordDecoder
from batch.records.encode import LineEncoder
from batch.records.input_shards import Shard
from batch.worker_signs import format_signs_folder, write_sign
from serving.artifacts.storage import FileStore
from serving.runtimes.json_codec import AnswerStyle

logger = logging.getLogger(__name__)

NAMESPACE = "pilotlight"
PREDICTIONS, ERRORS, BYTES = "predictions", "errors", "bytes"


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """All parameters of the steps. `folder` is for the temporary files of attempts with this plan,
    `progress_folder` for `ProgressWriter`. `queue` hands out the shards where there may be several workers of
    this machine.
    """

    files: FileStore
    shards: Sequence[Shard]
    data_format: str
    output_format: str
    model: SharedModel
    parameters: Mapping[str, Any]
    batch_size: int
    keys: tuple[str, ...]
    folder: str
    progress_folder: str
    style: AnswerStyle = AnswerStyle()
    queue: ShardQueue | None = None

    @property
    def errors(self) -> StepErrors:
        if self.progress_folder:
            return IN_TEXT_ONLY
        return StepErrors(self.files, format_signs_folder(self.folder))


def build_pipeline(pipeline: beam.Pipeline, plan: PipelinePlan) -> None:
    errors, progress = plan.errors, ProgressWriter(plan.progress_folder)
    (
        pipeline
        | "Shards" >> beam.Create([(shard.index, shard) for shard in plan.shards], reshuffle=False)
        | "Hand out" >> beam.GroupByKey()
        | "Read" >> beam.ParDo(ReadShards(plan.files, plan.data_format, plan.folder, plan.queue, errors))
        | "Decode" >> beam.ParDo(DecodeRecords(plan.model, plan.parameters, plan.keys, errors))
        | "Predict" >> RunInference(RuntimeHandler(plan.model, plan.parameters, plan.batch_size, errors))
        | "Encode" >> beam.ParDo(EncodePredictions(plan.output_format, plan.style, errors))
        | "Write" >> beam.ParDo(WritePieces(plan.files, plan.folder, progress, errors))
        | "Bring together" >> beam.GroupByKey()
        | "Seal" >> beam.ParDo(SealShards(plan.files, plan.folder, errors))
    )


class ReadShards(beam.DoFn):
    """Reads shards as blocks of records, but those that an earlier run of the pipeline has sealed.

    An engine that has lost a worker runs the whole pipeline again. With a `queue` it reads what that hands
    out, at the first shard that it is given.
    """

    def __init__(
        self, files: FileStore, data_format: str, folder: str, queue: ShardQueue | None, errors: StepErrors
    ) -> None:
        self._files = files
        self._data_format = data_format
        self._folder = folder
        self._queue = queue
        self._errors = errors

    def process(self, element: tuple[int, Iterable[Shard]]) -> Iterator[RecordBlock]:
        _, given = element
        shards = given if self._queue is None else self._queue.take_shards()
        with self._errors.carry():
            for shard in shards:
                if not writers.is_sealed(self._files, self._folder, shard.index):
                    yield from readers.read_shard(self._files, shard, self._data_format)


class DecodeRecords(beam.DoFn):
    """Decodes records to instances in the model's input format."""

    def __init__(
        self, model: SharedModel, parameters: Mapping[str, Any], keys: tuple[str, ...], errors: StepErrors
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._keys = keys
        self._errors = errors

    def setup(self) -> None:
        """Load the model, which determines the format."""
        with self._errors.carry():
            self._runtime = self._model.load()
            self._instances = RecordDecoder(self._runtime.input_format(self._parameters), self._keys)

    def process(self, element: RecordBlock) -> Iterator[BatchedBlock]:
        with self._errors.carry():
            yield self._instances.decode(element)


class EncodePredictions(beam.DoFn):
    """Encodes predictions as lines."""

    def __init__(self, output_format: str, style: AnswerStyle, errors: StepErrors) -> None:
        self._lines = LineEncoder(output_format, style)
        self._errors = errors

    def process(self, element: PredictionResult) -> Iterator[EncodedBlock]:
        with self._errors.carry():
            yield self._lines.encode(cast(BatchedBlock, element.inference))


class WritePieces(beam.DoFn):
    """Writes lines to temporary files of the job: one for each shard in the bundle.

    A shard that is in one bundle as a whole, as it is on engines that fuse steps, is sealed at once.
    """

    def __init__(self, files: FileStore, folder: str, progress: ProgressWriter, errors: StepErrors) -> None:
        self._files = files
        self._folder = folder
        self._progress = progress
        self._errors = errors
        self._open: dict[int, writers.PieceWriter] = {}
        self._predictions = Metrics.counter(NAMESPACE, PREDICTIONS)
        self._rejected = Metrics.counter(NAMESPACE, ERRORS)
        self._bytes = Metrics.counter(NAMESPACE, BYTES)

    def setup(self) -> None:
        self._progress.start()
        if not self._progress.is_local:
            with self._errors.carry():
                write_sign(self._files, format_signs_folder(self._folder))

    def start_bundle(self) -> None:
        self._open = {}

    def process(self, element: EncodedBlock) -> Iterator[tuple[int, ShardPiece]]:
        """Append a block to the file of its shard; close the file after the last block.

        Returns the pieces of shards that other bundles have the rest of.
        """
        with self._errors.carry():
            writer = self._open.get(element.shard)
            if writer is None:
                writer = writers.PieceWriter(self._files, self._folder, element.shard, element.index)
                self._open[element.shard] = writer
            writer.add(element)
            self._count_block(element)
            if element.last:
                del self._open[element.shard]
                piece = writer.close()
                if piece.is_whole:
                    writers.seal_shard(self._files, self._folder, element.shard, [piece])
                else:
                    yield element.shard, piece

    def finish_bundle(self) -> Iterator[Any]:
        """Close the files of shards whose last block is in another bundle."""
        with self._errors.carry():
            for shard, writer in self._open.items():
                yield WindowedValue(
                    (shard, writer.close()), GlobalWindow().max_timestamp(), (GlobalWindow(),)
                )
        self._open = {}

    def teardown(self) -> None:
        """Abort the files that a failed bundle left open."""
        for writer in self._open.values():
            writer.abandon()

    def _count_block(self, block: EncodedBlock) -> None:
        self._predictions.inc(block.predictions)
        self._rejected.inc(len(block.rejected))
        self._bytes.inc(block.stored_bytes)
        examples = [f"{block.file} at byte {bad.offset}: {bad.reason}" for bad in block.rejected[:3]]
        done = ProgressTotals(
            block.predictions, len(block.rejected), block.stored_bytes, block.begun, time.time()
        )
        self._progress.add(done, examples)


class SealShards(beam.DoFn):
    """Joins the pieces of a shard to one file, and records that it is complete."""

    def __init__(self, files: FileStore, folder: str, errors: StepErrors) -> None:
        self._files = files
        self._folder = folder
        self._errors = errors

    def process(self, element: tuple[int, Iterable[ShardPiece]]) -> None:
        shard, pieces = element
        with self._errors.carry():
            writers.seal_shard(self._files, self._folder, shard, pieces)


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run needs besides its plan.

    `on_counts` gets its progress, `on_trouble` what keeps a remote runner from going on, "" once it is over;
    `on_stuck` is called when workers do not stop that should: it ends the process. `read_sealed_shards`
    counts what is in the shards that are sealed so far, also by earlier attempts; it raises no ServingError
    or OSError.
    """

    limit: ErrorLimit
    bytes_total: int
    on_counts: Callable[[JobCounts], None]
    on_trouble: Callable[[str], None]
    on_stuck: Callable[[FailureStatus], None]
    read_sealed_shards: Callable[[], JobCounts] = JobCounts


@dataclass(frozen=True, slots=True)
class RunTiming:
    """How long a run took, in seconds: see `JobOutcome`."""

    seconds: float
    worker_seconds: float


def start_pipeline(runner: Any, options: Any, plan: PipelinePlan) -> Any:
    """Submit the pipeline to the runner; returns Beam's result object."""
    steps = beam.Pipeline(runner=runner, options=options)
    build_pipeline(steps, plan)
    return steps.run()


def run_pipeline(runner: Any, options: Any, plan: PipelinePlan) -> None:
    """Run the pipeline to its end. Raises JobFailed."""
    try:
        start_pipeline(runner, options, plan).wait_until_finish()
    except Exception as error:
        raise to_job_failure(error) from error


def to_job_failure(error: Exception) -> JobFailed:
    """The JobFailed that an exception of Beam carries, or one of INTERNAL."""
    if isinstance(error, JobFailed):
        return error
    failed = failures.extract_failure(str(error))
    if failed is None:
        logger.error("the pipeline failed", exc_info=error)
        last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        failed = FailureStatus("INTERNAL", f"The pipeline failed: {last[0]}")
    return JobFailed(failed)
