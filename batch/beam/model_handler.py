"""A runtime as Beam's ModelHandler: the same runtimes as online, loaded once per worker process."""

from __future__ import annotations

import math
import os
import pickle
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from apache_beam.ml.inference.base import ModelHandler, PredictionResult
from apache_beam.utils.shared import Shared

from batch.beam.package_archive import PackageArchive, unpack_packages
from batch.failures import IN_TEXT_ONLY, StepErrors
from batch.messages import ModelSource
from batch.records.blocks import BatchedBlock, RejectedRecord, reject_record
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.storage import ArtifactFetcher
from serving.errors import InvalidOutputs, ModelError, ModelFailed, describe_exception
from serving.frameworks import BATCH_ROWS
from serving.runtimes import ColumnsFormat, ExternalInterpreter, InputFormat, LoadSpec, Runtime, load_model
from serving.runtimes.instance_batch import Batch, DependentColumns, count_rows, take_rows
from serving.scratch_folders import make_scratch_folder, sweep_scratch

# Runners may run several bundles at a time in one process; a runtime serves one thread at a time.
_RUNTIME_LOCK = threading.Lock()


class SharedModel:
    """A model that all steps of a worker process share, loaded at first use.

    `cache_dir` is "" for workers on other machines, which find the packages in `archive`, if there are any.
    """

    def __init__(
        self,
        source: ModelSource,
        cache_dir: str,
        cache_bytes: int,
        folders: LocalFolderPolicy | None = None,
        archive: PackageArchive | None = None,
    ) -> None:
        self._source = source
        self._folders = folders
        self._archive = archive
        self._cache_dir = cache_dir
        self._cache_bytes = cache_bytes
        self._shared = Shared()

    def load(self) -> Runtime:
        """Raises LoadFailed, InvalidUserCode, and the errors of fetching its files."""
        runtime: Runtime = self._shared.acquire(self._load_runtime)
        return runtime

    def _load_runtime(self) -> Runtime:
        source = self._source
        os.environ.update(source.environment)
        folder = Path(source.model_dir) if source.model_dir else self._fetch_files()
        return load_model(
            LoadSpec(
                folder,
                source.framework,
                source.prediction_class,
                tuple(map(Path, source.packages)) or self._unpack_packages(),
                external=ExternalInterpreter(source.interpreter, shared_fate=True)
                if source.interpreter
                else None,
                method=source.method,
            )
        )

    def _unpack_packages(self) -> tuple[Path, ...]:
        """Into a folder of this process: others may be workers of other jobs."""
        if self._archive is None:
            return ()
        return unpack_packages(self._archive, make_scratch_folder("packages"), self._folders)

    def _fetch_files(self) -> Path:
        sweep_scratch()
        folder = make_scratch_folder("model") / "model"
        if self._source.uri:
            cache = Path(self._cache_dir or Path(tempfile.gettempdir(), "pilotlight-cache"))
            storage = ArtifactFetcher(cache, self._cache_bytes, folders=self._folders)
            storage.fetch(self._source.uri, folder)
        else:  # a custom routine without files
            folder.mkdir()
        return folder


class RuntimeHandler(ModelHandler[BatchedBlock, PredictionResult, Runtime]):
    """Predicts batches with a runtime, `rows` at a time (0: a number that suits the model).

    A record that the model fails on fails alone: its call is repeated without it, unless the model takes
    batches of a fixed size.
    """

    def __init__(
        self,
        model: SharedModel,
        parameters: Mapping[str, Any],
        rows: int,
        errors: StepErrors = IN_TEXT_ONLY,
    ) -> None:
        super().__init__()
        self._model = model
        self._parameters = dict(parameters)
        self._rows = rows
        self._errors = errors

    def load_model(self) -> Runtime:
        with self._errors.carry():
            return self._model.load()

    def run_inference(
        self, batch: Sequence[BatchedBlock], model: Runtime, inference_args: dict[str, Any] | None = None
    ) -> Iterable[PredictionResult]:
        """One batch of predictions for each batch of instances."""
        for batches in batch:
            yield PredictionResult(batches.block.index, self._predict_block(batches, model))

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """Elements are blocks already: Beam must not batch them."""
        return {"min_batch_size": 1, "max_batch_size": 1}

    def get_num_bytes(self, batch: Sequence[BatchedBlock]) -> int:
        return sum(len(batches.block.data) for batches in batch)

    def get_metrics_namespace(self) -> str:
        return "pilotlight"

    def _predict_block(self, given: BatchedBlock, model: Runtime) -> BatchedBlock:
        form = model.input_format(self._parameters)
        fixed = form.fixed_rows if isinstance(form, ColumnsFormat) else None
        predictor = _IsolatingPredictor(model, self._parameters, fixed or 1)
        for part in given.parts:
            predictor.predict_rows(part, fixed or self._rows or _choose_batch_size(model, form, part))
        if not predictor.failures:
            return BatchedBlock(given.block, tuple(predictor.parts), given.rows, given.keys, given.rejected)
        return _drop_failed_rows(given, predictor)


class _IsolatingPredictor:
    """Predicts batch by batch, and isolates the rows that the model fails on, by their number.

    A call has at least `least` rows.
    """

    def __init__(self, model: Runtime, parameters: Mapping[str, Any], least: int) -> None:
        self._model = model
        self._parameters = parameters
        self._least = least
        self._most: float = math.inf  # the largest batch that may succeed
        self._row = 0
        self.parts: list[Batch] = []
        self.failures: dict[int, ModelError] = {}

    def predict_rows(self, instances: Batch, rows: int) -> None:
        """Predict at most `rows` rows per call, fewer once those turn out to be too many."""
        start, size = 0, count_rows(instances)
        while start < size:
            end = start + int(min(rows, self._most))
            self._predict_or_halve(take_rows(instances, slice(start, end)))
            start = end

    def _predict_or_halve(self, instances: Batch) -> None:
        """Predict a batch; halve one that fails until one row is left."""
        size = count_rows(instances)
        kept = b"" if self._model.framework.keeps_instances else pickle.dumps(instances)
        try:
            self.parts.append(self._call_model(instances, size))
        except ModelError as error:
            if size <= self._least:
                self.failures |= dict.fromkeys(range(self._row, self._row + size), error)
                self._row += size
                return
            half = (size + 1) // 2
            failed = len(self.failures)
            self.predict_rows(pickle.loads(kept) if kept else instances, half)
            if len(self.failures) == failed:  # the number of rows is at fault
                self._most = min(self._most, half)
        else:
            self._row += size

    def _call_model(self, instances: Batch, size: int) -> Batch:
        try:
            with _RUNTIME_LOCK:
                predictions = self._model.predict(instances, **self._parameters)
        except MemoryError:
            raise
        except ModelError as error:
            if isinstance(error.__cause__, MemoryError):
                raise error.__cause__ from error
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise ModelFailed(describe_exception(error)) from error
        if (count := count_rows(predictions)) != size:
            raise InvalidOutputs(
                f"The model gave {count} predictions for {size} instances; it must give as many."
            )
        return predictions


def _drop_failed_rows(given: BatchedBlock, predictor: _IsolatingPredictor) -> BatchedBlock:
    lines = given.block.split_records()
    rows = range(len(lines)) if given.rows is None else given.rows
    rejected: list[RejectedRecord] = [
        reject_record(lines[rows[row]], error) for row, error in predictor.failures.items()
    ]
    good = [row for row in range(len(rows)) if row not in predictor.failures]
    return BatchedBlock(
        given.block,
        tuple(predictor.parts),
        rows=[rows[row] for row in good],
        keys=None if given.keys is None else [given.keys[row] for row in good],
        rejected=tuple(sorted((*given.rejected, *rejected), key=lambda one: one.offset)),
    )


def _choose_batch_size(model: Runtime, form: InputFormat, part: Batch) -> int:
    """The default number of rows per call: one if rows are not known to be independent."""
    if isinstance(part, DependentColumns) or (isinstance(form, ColumnsFormat) and not form.independent_rows):
        return 1
    return model.framework.batch_rows if model.mergeable else BATCH_ROWS
