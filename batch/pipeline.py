"""The pipeline of a job: Read | Decode | Predict | Encode | Write | Seal, the same on every runner.

What flows from Read to Write is a block of records, so Beam's cost per element is paid once per block. The
only shuffles are the one that hands out shards, which carries their names, and the one that brings together
what bundles wrote of a shard, which carries file names: blocks never cross one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.ml.inference.base import PredictionResult, RunInference
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from batch import failures, readers, writers
from batch.blocks import Batches, Block, Encoded, Piece
from batch.decode import Instances
from batch.encode import Lines
from batch.handler import Model, RuntimeHandler
from batch.inputs import Shard
from batch.meter import Meter, Totals
from serving.runtimes.codec import AnswerStyle
from serving.storage import Files

NAMESPACE = "pilotlight"
PREDICTIONS, ERRORS, BYTES = "predictions", "errors", "bytes"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that the steps need to know. `folder` takes the attempt's temporary files, `meters` see `Meter`."""

    files: Files
    shards: Sequence[Shard]
    data_format: str
    output_format: str
    model: Model
    parameters: Mapping[str, Any]
    batch_size: int
    keys: tuple[str, ...]
    folder: str
    meters: str
    style: AnswerStyle = AnswerStyle()


def build(pipeline: beam.Pipeline, plan: Plan) -> None:
    """Put the steps together."""
    (
        pipeline
        | "Shards" >> beam.Create([(shard.index, shard) for shard in plan.shards], reshuffle=False)
        | "Hand out" >> beam.GroupByKey()
        | "Read" >> beam.ParDo(Read(plan.files, plan.data_format))
        | "Decode" >> beam.ParDo(Decode(plan.model, plan.parameters, plan.keys))
        | "Predict" >> RunInference(RuntimeHandler(plan.model, plan.parameters, plan.batch_size))
        | "Encode" >> beam.ParDo(Encode(plan.output_format, plan.style))
        | "Write" >> beam.ParDo(Write(plan.files, plan.folder, Meter(plan.meters)))
        | "Bring together" >> beam.GroupByKey()
        | "Seal" >> beam.ParDo(Seal(plan.files, plan.folder))
    )


class Read(beam.DoFn):
    """Shards to blocks of records."""

    def __init__(self, files: Files, data_format: str) -> None:
        self._files = files
        self._data_format = data_format

    def process(self, element: tuple[int, Iterable[Shard]]) -> Iterator[Block]:
        """Read the one shard of this number."""
        _, shards = element
        with failures.carried():
            for shard in shards:
                yield from readers.read(self._files, shard, self._data_format)


class Decode(beam.DoFn):
    """Records to instances in the form that the model wants."""

    def __init__(self, model: Model, parameters: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        self._model = model
        self._parameters = parameters
        self._keys = keys

    def setup(self) -> None:
        """Load the model, which alone knows its form."""
        with failures.carried():
            self._runtime = self._model.get()
            self._instances = Instances(self._runtime.form(self._parameters), self._keys)

    def process(self, element: Block) -> Iterator[Batches]:
        """Decode a block."""
        with failures.carried():
            yield self._instances.decode(element)


class Encode(beam.DoFn):
    """Predictions to lines."""

    def __init__(self, output_format: str, style: AnswerStyle) -> None:
        self._lines = Lines(output_format, style)

    def process(self, element: PredictionResult) -> Iterator[Encoded]:
        """Encode a block."""
        with failures.carried():
            yield self._lines.encode(cast(Batches, element.inference))


class Write(beam.DoFn):
    """Lines to files of the attempt: one of each shard that is in the bundle."""

    def __init__(self, files: Files, folder: str, meter: Meter) -> None:
        self._files = files
        self._folder = folder
        self._meter = meter
        self._open: dict[int, writers.PieceWriter] = {}
        self._predictions = Metrics.counter(NAMESPACE, PREDICTIONS)
        self._errors = Metrics.counter(NAMESPACE, ERRORS)
        self._bytes = Metrics.counter(NAMESPACE, BYTES)

    def setup(self) -> None:
        """Show that this worker is at work."""
        self._meter.start()

    def start_bundle(self) -> None:
        """Begin with no file."""
        self._open = {}

    def process(self, element: Encoded) -> Iterator[tuple[int, Piece]]:
        """Append a block to the file of its shard, and close that behind the last one."""
        with failures.carried():
            writer = self._open.get(element.shard)
            if writer is None:
                writer = writers.PieceWriter(self._files, self._folder, element.shard, element.index)
                self._open[element.shard] = writer
            writer.add(element)
            self._count(element)
            if element.last:
                del self._open[element.shard]
                yield element.shard, writer.close()

    def finish_bundle(self) -> Iterator[Any]:
        """Close the files of shards whose last block another bundle gets."""
        with failures.carried():
            for shard, writer in self._open.items():
                yield WindowedValue(
                    (shard, writer.close()), GlobalWindow().max_timestamp(), (GlobalWindow(),)
                )
        self._open = {}

    def teardown(self) -> None:
        """Drop what a failed bundle left open."""
        for writer in self._open.values():
            writer.abandon()

    def _count(self, block: Encoded) -> None:
        self._predictions.inc(block.predictions)
        self._errors.inc(len(block.bad))
        self._bytes.inc(block.stored)
        examples = [f"{block.file} at byte {bad.offset}: {bad.reason}" for bad in block.bad[:3]]
        done = Totals(block.predictions, len(block.bad), block.stored, block.begun, time.time())
        self._meter.add(done, examples)


class Seal(beam.DoFn):
    """The pieces of a shard to one file, written down as complete."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def process(self, element: tuple[int, Iterable[Piece]]) -> None:
        """Seal a shard."""
        shard, pieces = element
        with failures.carried():
            writers.seal(self._files, self._folder, shard, pieces)
