"""A node without its server: loads and warms up its version, then predicts."""

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
from serving.frameworks import Framework, load_frameworks
from serving.latency_histograms import LatencyHistograms
from serving.model_schema import ModelSchema, pack_schema
from serving.node.acceleration_controller import AccelerationController
from serving.node.batch_equivalence import (
    BatchCheckSteps,
    BatchEquivalenceCheck,
    BatchingDecision,
    SubmitWork,
    check_batch_equivalence,
    confirm_batch_equivalence,
    finish_check,
    warm_up_model,
    warm_up_model_briefly,
)
from serving.node.batcher import BatchLimits
from serving.node.compute import AdaptiveExecutor
from serving.node.predict import NodePredictor
from serving.node.request_marks import CallMark, RequestMarks
from serving.node.warmup.protocol_warmup import StubRuntime, make_http_examples, warm_up_predictor
from serving.runtimes import LoadSpec, Runtime, load_model, model_check
from serving.runtimes.schema_inference import infer_model_schema, read_examples
from serving.runtimes.thread_limit import ThreadLimit

logger = logging.getLogger(__name__)

# Seconds that the warm-up of the protocols may delay readiness.
_WARMUP_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """What a node reports once its version is ready.

    `pilot` is the key of the one that imports what the node has imported. `once_seconds` is the part of its
    start that later nodes skip: the verification of a new version. `schema` is the model's schema, packed; ""
    from a node that was given the schema.
    """

    framework: str
    merge: bool
    merge_reason: str
    warnings: tuple[str, ...]
    load_seconds: float
    warm_seconds: float
    pilot: str
    exact: bool
    once_seconds: float = 0.0
    schema: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


ProtocolWarmup = Callable[[NodePredictor, ModelSchema], Awaitable[None]]


async def warm_up_all_protocols(predictor: NodePredictor, schema: ModelSchema) -> None:
    """Each example once, but the first one twice: the second call is the one that is timed."""
    examples = list(make_http_examples(schema))
    await warm_up_predictor(predictor, [*examples[:1], *examples], rounds=1, seconds=_WARMUP_SECONDS)


async def _warm_up_first_request(predictor: NodePredictor, schema: ModelSchema) -> None:
    """The first example, twice: a request waits, and the spare process has warmed up the other protocols."""
    examples = list(itertools.islice(make_http_examples(schema), 1))
    await warm_up_predictor(predictor, examples, rounds=2, seconds=_WARMUP_SECONDS)


class ServingNode:
    """One version, from its load to its predictions; its server calls `start`, and `stop` at the end.

    `waking`: the version was loaded before, so a brief warm-up is enough. `schema` is the known one; None: it
    is inferred. `marks` has a byte for each request in flight; `histograms` counts phases of answered ones.
    `batch_check_seconds` is how much of the batch-equivalence check may delay readiness: the rest runs while
    the node serves, without batching until it is done. `protocol_warmup` is awaited before the node is ready,
    with a predictor of its own; None: as much as fits into `_WARMUP_SECONDS`.

    `on_ready` is called once with the report, or `on_failed` once with the error, on the event loop. An
    Unavailable is not the version's fault: another node may succeed.
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
        self._background_checks: asyncio.Task[None] | None = None
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._runs_user_code = bool(source.packages or source.prediction_class or source.model_container)
        self._compute_thread = ThreadPoolExecutor(
            max_workers=source.concurrent_calls, thread_name_prefix="compute"
        )
        self._startup_task: asyncio.Task[None] | None = None
        self._started_at = time.monotonic()
        self.predictor: NodePredictor | None = None  # once the version is loaded and warmed
        self.schema: ModelSchema | None = schema  # once it is loaded
        self.legacy_model_errors = settings.legacy_model_errors
        self.has_bare_answers = settings.single_output == "bare"

    def start(self) -> None:
        self._startup_task = asyncio.get_running_loop().create_task(self._run_startup())

    def stop(self) -> None:
        if self._startup_task is not None:
            self._startup_task.cancel()
        if self._background_checks is not None:
            self._background_checks.cancel()
        self._compute_thread.shutdown(wait=False, cancel_futures=True)

    def collect_stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = {
            "pid": os.getpid(),
            "uptimeSeconds": round(time.monotonic() - self._started_at, 1),
        }
        if self._acceleration is not None:
            stats["acceleration"] = self._acceleration.collect_stats()
        return stats if self.predictor is None else stats | self.predictor.collect_stats()

    # ---- loading

    async def _run_startup(self) -> None:
        # What a library loads stays: garbage collection would take up to a tenth of the load time and free
        # nothing. User code may leave garbage.
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
            runtime, check, typical, report = await loop.run_in_executor(
                self._compute_thread, self._try_to_load
            )
        except ServingError as error:
            self._on_failed(error)
            return
        executor = AdaptiveExecutor(
            self._compute_thread,
            may_inline=not self._runs_user_code,
            concurrency=self._source.concurrent_calls,
        )
        if typical is not None:
            executor.record_duration(typical)
        limits = BatchLimits(
            merge_rows=_current_decision(check).compute_max_batch_rows(self._settings.merge_rows),
            queue_requests=self._settings.queue_requests,
            queue_bytes=self._settings.queue_bytes,
        )
        await self._warm_up_protocols(runtime, executor, limits)
        self.predictor = predictor = NodePredictor(
            runtime,
            executor,
            limits,
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
            "loaded in %.2f s, warmed in %.2f s; dynamic batching: %s (%s)",
            report.load_seconds,
            report.warm_seconds,
            "on" if report.merge else "off",
            report.merge_reason,
        )
        self._on_ready(report)
        self._background_checks = loop.create_task(
            self._run_background_checks(
                predictor, runtime, check, self._with_call_mark(executor.run_other_work)
            )
        )
        self._background_checks.add_done_callback(_log_check_error)

    def _with_call_mark(self, submit_work: SubmitWork) -> SubmitWork:
        """The same, with the call mark set while the work runs."""
        return lambda work: submit_work(self.call_mark.mark_calls(work))

    async def _warm_up_protocols(
        self, runtime: Runtime, executor: AdaptiveExecutor, limits: BatchLimits
    ) -> None:
        """Warm up with example requests. User code may keep state, so a stub takes its place."""
        schema = self.schema
        if self._runs_user_code:
            runtime, executor = StubRuntime(), AdaptiveExecutor(self._compute_thread, may_inline=True)
            schema = runtime.infer_schema()
        if schema is not None:
            predictor = NodePredictor(
                runtime, executor, limits, self._settings, marks=bytearray(), schema=schema
            )
            await self._protocol_warmup(predictor, schema)

    async def _run_background_checks(
        self,
        predictor: NodePredictor,
        runtime: Runtime,
        check: BatchEquivalenceCheck,
        submit_work: SubmitWork,
    ) -> None:
        """The checks that readiness does not wait for."""
        if self._acceleration is not None:
            activated = await self._acceleration.verify_and_monitor(
                submit_work, is_batching=_current_decision(check).merge
            )
            if activated is not None and check.decision is None:
                check = BatchEquivalenceCheck(self._decide_batching(runtime, activated))
        if check.decision is None:
            decision = await finish_check(check, submit_work)
            predictor.set_max_batch_rows(decision.compute_max_batch_rows(self._settings.merge_rows))
            logger.info("dynamic batching: %s (%s)", "on" if decision.merge else "off", decision.reason)

    def _try_to_load(self) -> tuple[Runtime, BatchEquivalenceCheck, float | None, ReadyReport]:
        try:
            return self._load_and_warm_up()
        except Exception:
            raise
        except BaseException as error:  # user code may raise anything; the start would fail silently
            raise LoadFailed(describe_exception(error)) from error

    def _load_and_warm_up(self) -> tuple[Runtime, BatchEquivalenceCheck, float | None, ReadyReport]:
        ThreadLimit(self._settings.threads).apply()
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        start = time.perf_counter()
        runtime = load_model(self._source)
        loaded = time.perf_counter()
        # The strategy that will serve is activated first: batch equivalence is checked for it.
        accelerated = None if self._acceleration is None else self._acceleration.activate(runtime)
        check = BatchEquivalenceCheck(self._decide_batching(runtime, accelerated))
        check.run_for(self._batch_check_seconds)
        decision = _current_decision(check)
        self.schema = schema = self._known_schema or infer_model_schema(runtime, self._source.model_dir)
        typical, warnings = self._warm_up_model(runtime, decision, schema)
        warmed = time.perf_counter()
        _restore_open_files(open_files)
        warnings = (*runtime.warnings, *warnings)
        for warning in warnings:
            logger.warning(warning)
        report = ReadyReport(
            framework=runtime.framework.name,
            merge=decision.merge,
            merge_reason=decision.reason,
            warnings=warnings,
            load_seconds=round(loaded - start, 4),
            warm_seconds=round(warmed - loaded, 4),
            pilot=_find_pilot_key(runtime.framework),
            exact=runtime.exact,
            once_seconds=0.0
            if self._acceleration is None
            else round(self._acceleration.verification_seconds, 4),
            schema=pack_schema(schema) if self._known_schema is None else "",
        )
        return runtime, check, typical, report

    def _warm_up_model(
        self, runtime: Runtime, decision: BatchingDecision, schema: ModelSchema
    ) -> tuple[float | None, tuple[str, ...]]:
        """The seconds of a typical call, None if unknown, and warnings for the version's owner.

        Raises LoadFailed for a new version that cannot predict.
        """
        if self._waking:
            warm_up_model_briefly(runtime)
            return None, ()
        warmed = warm_up_model(
            runtime,
            (decision.compute_max_batch_rows(self._settings.merge_rows), 1) if decision.merge else (1,),
        )
        tried = (
            *model_check.run_trials(runtime, schema, read_examples(self._source.model_dir)),
            *warmed.recorded,
        )
        found = model_check.judge_trials(tried, lambda: model_check.describe_runtime_versions(runtime))
        if found.failure:
            raise LoadFailed(found.failure)
        return warmed.seconds, (*found.warnings, *model_check.warn_untried(runtime, tried))

    def _decide_batching(self, runtime: Runtime, accelerated: Predict | None) -> BatchCheckSteps:
        match self._settings.merge_requests:
            case "on":
                return BatchingDecision(True, "asked for")
            case "off":
                return BatchingDecision(False, "switched off")
            case _:
                prepared = None if self._acceleration is None else self._acceleration.prepared_batching
                if prepared is not None:
                    return (yield from confirm_batch_equivalence(runtime, accelerated, prepared))
                return (yield from check_batch_equivalence(runtime, accelerated))


def _find_pilot_key(framework: Framework) -> str:
    """The key of the pilot that has imported most of what this node has."""
    if framework.runs_user_code:
        known = (one for one in load_frameworks().values() if one.user_imports)
        framework = next((one for one in known if one.library in sys.modules), framework)
    return framework.pilot


def _log_check_error(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("background tuning failed; serving continues unchanged", exc_info=error)


def _restore_open_files(limit: tuple[int, int]) -> None:
    """Restore the limit of open files, which a model may have lowered. Raises LoadFailed."""
    now = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if now != limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    except (OSError, ValueError) as error:
        raise LoadFailed(
            f"Loading the model has lowered the limit of open files of its process to {now[1]}, from "
            f"{limit[1]}. Its requests could not reach it: take that out of the model's code."
        ) from error


def _current_decision(check: BatchEquivalenceCheck) -> BatchingDecision:
    return check.decision or BatchingDecision(False, "not known yet")
