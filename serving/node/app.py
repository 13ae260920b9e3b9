"""A node without its server: loads its version, warms it, then predicts."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import math
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from serving.acceleration.candidates import Predict
from serving.config import PredictSettings
from serving.errors import LoadFailed, ServingError, Unavailable, describe_exception, find_shortage
from serving.latency_histograms import LatencyHistograms
from serving.model_schema import ModelSchema, pack_schema
from serving.node.acceleration_controller import AccelerationController
from serving.node.batch_equivalence import (
    BatchCheckSteps,
    BatchEquivalenceCheck,
    BatchingDecision,
    SubmitWork,
    check_batch_equivalence,
    finish_check,
    warm_up_model,
    warm_up_model_briefly,
)
from serving.node.batcher import BatchLimits
from serving.node.compute import AdaptiveExecutor
from serving.node.predict import Predictor
from serving.node.request_marks import CallMark, RequestMarks
from serving.node.warmup.protocol_warmup import StubRuntime, make_http_examples, warm_up_predictor
from serving.runtimes import LoadSpec, Runtime, load_model, model_check
from serving.runtimes.schema_inference import infer_model_schema, read_examples
from serving.runtimes.thread_limit import ThreadLimit

logger = logging.getLogger(__name__)

# Seconds that practice may take where the node is waited for.
_WARMUP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """What a node tells once its version is ready.

    `once_seconds` is the part of its start that other nodes are spared: the study of a new version. `schema`
    is what the model takes and answers, packed; "" from a node that was told.
    """

    framework: str
    merge: bool
    merge_reason: str
    warnings: tuple[str, ...]
    load_seconds: float
    warm_seconds: float
    imports_tensorflow: bool
    exact: bool
    once_seconds: float = 0.0
    schema: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return asdict(self)


ProtocolWarmup = Callable[[Predictor, ModelSchema], Awaitable[None]]


async def warm_up_all_protocols(predictor: Predictor, schema: ModelSchema) -> None:
    """Each question once, but the first one twice: what is measured is how long the second call takes."""
    asked = list(make_http_examples(schema))
    await warm_up_predictor(predictor, [*asked[:1], *asked], rounds=1, seconds=_WARMUP_SECONDS)


async def _warm_up_first_request(predictor: Predictor, schema: ModelSchema) -> None:
    """The first question, twice: somebody waits, and the spare that the node was has rehearsed the others."""
    asked = list(itertools.islice(make_http_examples(schema), 1))
    await warm_up_predictor(predictor, asked, rounds=2, seconds=_WARMUP_SECONDS)


class ServingNode:
    """One version, from loading it to its predictions; who serves it calls `start`, and `end` in the end.

    `source` says what to load, `waking` that it has been loaded before, so that one row will do to warm it.
    `schema` is what the version is known to take and answer; None: the node has to find out.
    `board` has a byte for each request that may be inside, `histograms` counts the phases of those that were
    answered. `patience` is how many seconds it may take, before the node is ready, to find out whether
    requests may share calls: the rest is found out while it serves, and they share none until then.
    `acceleration` has the model's faster ways, if there are to be any. `practice` asks a predictor, that is
    gone after it, what clients will ask, before the node is ready; None: as much as its start leaves time
    for. `on_ready` is called once with the report, `on_failed` once with the error when the version cannot be
    loaded; both on the loop. An Unavailable is no fault of the version: another node may do better.
    """

    def __init__(
        self,
        source: LoadSpec,
        settings: PredictSettings,
        *,
        marks: RequestMarks,
        histograms: LatencyHistograms | None = None,
        waking: bool,
        schema: ModelSchema | None = None,
        batch_check_seconds: float = math.inf,
        acceleration: AccelerationController | None = None,
        protocol_warmup: ProtocolWarmup | None = None,
        on_ready: Callable[[ReadyReport], None],
        on_failed: Callable[[ServingError], None],
    ) -> None:
        self._source = source
        self._settings = settings
        self._marks = marks
        self._histograms = histograms
        self.call_mark = CallMark(histograms)
        self._waking = waking
        self._known_schema = schema
        self._batch_check_seconds = batch_check_seconds
        self._acceleration = acceleration
        self._protocol_warmup = protocol_warmup or (
            _warm_up_first_request if waking else warm_up_all_protocols
        )
        self._tuning_task: asyncio.Task[None] | None = None
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._runs_user_code = bool(source.packages or source.prediction_class or source.model_container)
        self._compute_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._startup_task: asyncio.Task[None] | None = None
        self._started_at = time.monotonic()
        self.predictor: Predictor | None = None  # once the version is loaded and warmed
        self.schema: ModelSchema | None = schema  # once it is loaded
        self.legacy_model_errors = settings.legacy_model_errors
        self.has_bare_answers = settings.single_output == "bare"

    def start(self) -> None:
        """Begin to load."""
        self._startup_task = asyncio.get_running_loop().create_task(self._run_startup())

    def stop(self) -> None:
        """Load no further, and compute nothing more."""
        if self._startup_task is not None:
            self._startup_task.cancel()
        if self._tuning_task is not None:
            self._tuning_task.cancel()
        self._compute_thread.shutdown(wait=False, cancel_futures=True)

    def collect_stats(self) -> dict[str, Any]:
        """Counts since the start, for people and dashboards."""
        stats: dict[str, Any] = {
            "pid": os.getpid(),
            "uptimeSeconds": round(time.monotonic() - self._started_at, 1),
        }
        if self._acceleration is not None:
            stats["acceleration"] = self._acceleration.collect_stats()
        return stats if self.predictor is None else stats | self.predictor.collect_stats()

    # ---- loading

    async def _run_startup(self) -> None:
        # What a library loads stays. The collector would look at it time and again, for as long as a tenth of
        # all the loading, and find nothing; only of user code nobody knows what it leaves behind.
        if not self._runs_user_code:
            gc.disable()
        try:
            await self._make_ready()
        except Exception as error:
            logger.exception("the node cannot start")
            self._on_failed(find_shortage(error) or Unavailable(f"The node cannot start: {error!r}."))
        finally:
            gc.enable()

    async def _make_ready(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # In the compute thread, so that /healthz answers meanwhile.
            runtime, judgement, typical, report = await loop.run_in_executor(
                self._compute_thread, self._try_to_load
            )
        except ServingError as error:
            self._on_failed(error)
            return
        place = AdaptiveExecutor(self._compute_thread, may_inline=not self._runs_user_code)
        if typical is not None:
            place.record_duration(typical)
        bounds = BatchLimits(
            merge_rows=_current_decision(judgement).limit_batch_rows(self._settings.merge_rows),
            queue_requests=self._settings.queue_requests,
            queue_bytes=self._settings.queue_bytes,
        )
        await self._warm_up_protocols(runtime, place, bounds)
        self.predictor = predictor = Predictor(
            runtime,
            place,
            bounds,
            self._settings,
            marks=self._marks,
            schema=self.schema,
            histograms=self._histograms,
            call_mark=self.call_mark,
        )
        if self._runs_user_code:
            gc.collect()
        gc.freeze()
        logger.info(
            "loaded in %.2f s, warmed in %.2f s; requests share calls: %s (%s)",
            report.load_seconds,
            report.warm_seconds,
            "yes" if report.merge else "no",
            report.merge_reason,
        )
        self._on_ready(report)
        self._tuning_task = loop.create_task(
            self._tune_in_background(predictor, judgement, self._mark_calls(place.run_other_work))
        )
        self._tuning_task.add_done_callback(_log_tuning_error)

    def _mark_calls(self, here: SubmitWork) -> SubmitWork:
        """Other work with the model, of which the mark tells as of its calls."""
        return lambda work: here(self.call_mark.mark_calls(work))

    async def _warm_up_protocols(
        self, runtime: Runtime, executor: AdaptiveExecutor, bounds: BatchLimits
    ) -> None:
        """Have it asked what clients will ask. User code is not: it may remember what it was asked."""
        schema = self.schema
        if self._runs_user_code:
            runtime, executor = StubRuntime(), AdaptiveExecutor(self._compute_thread, may_inline=True)
            schema = runtime.infer_schema()
        if schema is not None:
            predictor = Predictor(runtime, executor, bounds, self._settings, marks=bytearray(), schema=schema)
            await self._protocol_warmup(predictor, schema)

    async def _tune_in_background(
        self, predictor: Predictor, judgement: BatchEquivalenceCheck, submit_work: SubmitWork
    ) -> None:
        """What was not worth waiting for."""
        if judgement.decision is None:
            verdict = await finish_check(judgement, submit_work)
            predictor.set_max_batch_rows(verdict.limit_batch_rows(self._settings.merge_rows))
            logger.info("requests share calls: %s (%s)", "yes" if verdict.merge else "no", verdict.reason)
        if self._acceleration is not None:
            await self._acceleration.verify_and_monitor(
                submit_work, is_batching=_current_decision(judgement).merge
            )

    def _try_to_load(self) -> tuple[Runtime, BatchEquivalenceCheck, float | None, ReadyReport]:
        try:
            return self._load_runtime()
        except Exception:
            raise
        except BaseException as error:  # code of users may raise anything; nobody would be told of it
            raise LoadFailed(describe_exception(error)) from error

    def _load_runtime(self) -> tuple[Runtime, BatchEquivalenceCheck, float | None, ReadyReport]:
        ThreadLimit(self._settings.threads).apply()
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        start = time.perf_counter()
        runtime = load_model(self._source)
        loaded = time.perf_counter()
        # The way that will serve comes first: requests may share calls if that keeps to the rule of equality.
        faster = None if self._acceleration is None else self._acceleration.activate(runtime)
        judgement = BatchEquivalenceCheck(self._check_batching(runtime, faster))
        judgement.run_for(self._batch_check_seconds)
        verdict = _current_decision(judgement)
        self.schema = schema = self._known_schema or infer_model_schema(runtime, self._source.model_dir)
        typical, warnings = self._warm_up_model(runtime, verdict, schema)
        warmed = time.perf_counter()
        _restore_open_files(open_files)
        warnings = (*runtime.warnings, *warnings)
        for warning in warnings:
            logger.warning(warning)
        report = ReadyReport(
            framework=runtime.framework,
            merge=verdict.merge,
            merge_reason=verdict.reason,
            warnings=warnings,
            load_seconds=round(loaded - start, 4),
            warm_seconds=round(warmed - loaded, 4),
            imports_tensorflow="tensorflow" in sys.modules,
            exact=runtime.exact,
            once_seconds=0.0
            if self._acceleration is None
            else round(self._acceleration.verification_seconds, 4),
            schema=pack_schema(schema) if self._known_schema is None else "",
        )
        return runtime, judgement, typical, report

    def _warm_up_model(
        self, runtime: Runtime, verdict: BatchingDecision, schema: ModelSchema
    ) -> tuple[float | None, tuple[str, ...]]:
        """The seconds of a typical call, None if that is not known, and what the owner should know.

        Raises LoadFailed for a new version that cannot predict.
        """
        if self._waking:
            warm_up_model_briefly(runtime)
            return None, ()
        warmed = warm_up_model(
            runtime, (verdict.limit_batch_rows(self._settings.merge_rows), 1) if verdict.merge else (1,)
        )
        tried = (
            *model_check.run_trials(runtime, schema, read_examples(self._source.model_dir)),
            *warmed.recorded,
        )
        found = model_check.judge_trials(tried, lambda: model_check.describe_runtime_versions(runtime))
        if found.failure:
            raise LoadFailed(found.failure)
        return warmed.seconds, found.warnings

    def _check_batching(self, runtime: Runtime, faster: Predict | None) -> BatchCheckSteps:
        match self._settings.merge_requests:
            case "on":
                return BatchingDecision(True, "asked for")
            case "off":
                return BatchingDecision(False, "switched off")
            case _:
                return (yield from check_batch_equivalence(runtime, faster))


def _log_tuning_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the node serves on as it is; it could not find a faster way", exc_info=error)


def _restore_open_files(limit: tuple[int, int]) -> None:
    """Undo what a model may have done to the limit: with too low a one nobody could connect to the node."""
    now = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if now != limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    except (OSError, ValueError) as error:
        raise LoadFailed(
            f"Loading the model has lowered the limit of open files of its process to {now[1]}, from "
            f"{limit[1]}. Its requests could not reach it: take that out of the model's code."
        ) from error


def _current_decision(judgement: BatchEquivalenceCheck) -> BatchingDecision:
    return judgement.decision or BatchingDecision(False, "not known yet")
