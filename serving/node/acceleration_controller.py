"""Acceleration of a node's model: activated at load, verified if there is no record yet, and monitored.

A small share of live calls is compared with the library's answers, after the client has its answer and where
calls compute. The first difference withdraws the acceleration, for this node and later ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, MutableSequence
from pathlib import Path
from typing import cast

import msgspec

from serving import acceleration_record
from serving.acceleration.activation import activate_fast_path, activate_prepared, read_matching_record
from serving.acceleration.candidates import AccelerableRuntime, Predict
from serving.acceleration.dispatch import FastPathDispatcher
from serving.acceleration.verification import VerifiableRuntime
from serving.acceleration.verification_process import (
    BackgroundVerification,
    VerificationOrder,
    is_verifiable,
    is_verified_first,
    run_in_subprocess,
    start_in_background,
)
from serving.acceleration_record import (
    PLAIN_STRATEGY,
    PREPARED_FOLDER,
    AccelerationKey,
    AccelerationRecord,
    DamagedRecordError,
    RecordLocation,
)
from serving.errors import ServingError
from serving.latency_histograms import NODE_COUNTS, as_cells
from serving.node.batch_equivalence import (
    BatchEquivalenceCheck,
    BatchingDecision,
    SubmitWork,
    check_batch_equivalence,
    finish_check,
    run_and_time,
)
from serving.node.request_marks import RequestMarks
from serving.runtimes import LoadSpec, Runtime, find_loader

logger = logging.getLogger(__name__)

# The pause after a comparison, as a multiple of its duration; and seconds from a call to its comparison, and
# until the first one.
_REST_FACTOR = 500
_DELAY, _FIRST_DELAY = 0.005, 1.0
_COMPARED, _DIFFERENT = range(len(NODE_COUNTS))
# How many records the cache of standalone nodes keeps.
_MAX_RECORDS = 100


class AccelerationController:
    """Verifies, activates and monitors the accelerated strategy of one node's model.

    `find_location` is called only for a model that may be accelerated. `counts` are those of `NODE_COUNTS`.
    `verification_seconds` is how long `verify_before_load` took; `prepared_batching` what the prepared record
    in use says about batching.
    """

    def __init__(
        self,
        source: LoadSpec,
        find_location: Callable[[], RecordLocation],
        counts: MutableSequence[int] | None = None,
    ) -> None:
        self._source = source
        self._find_location = find_location
        self._counts: MutableSequence[int] = [0] * len(NODE_COUNTS) if counts is None else counts
        self._location: RecordLocation | None = None
        self._record: AccelerationRecord | None = None
        self._dispatcher: FastPathDispatcher | None = None
        self._runtime: Runtime | None = None
        self._is_prepared = False  # the record is that of the prepared folder
        self._verification: BackgroundVerification | None = None
        self.prepared_batching: BatchingDecision | None = None
        self.verification_seconds = 0.0

    def verify_before_load(self) -> None:
        """Verify a new version's candidates in another process, for models where that is quick."""
        if not is_verified_first(self._source):
            return
        started = time.perf_counter()
        location = self._locate()
        try:
            run_in_subprocess(
                VerificationOrder.from_load_spec(self._source, Path(location.folder), location.key)
            )
        except Exception:
            # The version is served without acceleration.
            logger.exception("the model's acceleration cannot be verified")
        self.verification_seconds = time.perf_counter() - started

    def start_verification(self) -> None:
        """Start to verify a model that has no record, in a process beside this one.

        To be called before this process starts threads: the other one is its fork, which shares the imported
        framework.
        """
        if not is_verified_first(self._source):
            return
        try:
            location = self._locate()
        except OSError:
            return  # the load says what is wrong
        if self._find_record(location) is not None:
            return
        order = VerificationOrder.from_load_spec(
            self._source, Path(location.folder), location.key, in_background=True
        )
        try:
            find_loader(self._source)
        except ServingError:
            return  # the load raises it again
        self._verification = start_in_background(order)

    def activate(self, runtime: Runtime) -> Predict | None:
        """Activate the fastest verified strategies; None: the library itself predicts."""
        if (
            not is_verifiable(self._source)
            or not isinstance(runtime, AccelerableRuntime)
            or not runtime.list_candidates()
        ):
            return None
        try:
            location = self._locate()
        except OSError as error:
            logger.warning("cannot locate the acceleration record: %s", error)
            return None
        self._runtime = runtime
        self._record = self._find_record(location)
        if self._record is not None:
            self._dispatcher = self._activate_record(runtime, location, self._record)
            logger.info("prediction strategy: %s", _describe_strategy(self._record, self._dispatcher))
        return self._dispatcher

    def _locate(self) -> RecordLocation:
        """Raises OSError."""
        if self._location is None:
            self._location = self._find_location()
        return self._location

    def _find_record(self, location: RecordLocation) -> AccelerationRecord | None:
        record = read_matching_record(Path(location.folder), location.key)
        self._is_prepared = record is None and bool(location.prepared)
        return read_matching_record(Path(location.prepared), location.key) if self._is_prepared else record

    def _activate_record(
        self, runtime: Runtime, location: RecordLocation, record: AccelerationRecord
    ) -> FastPathDispatcher | None:
        if not self._is_prepared:
            return activate_fast_path(runtime, Path(location.folder), record)
        dispatcher, wrong = activate_prepared(runtime, record)
        if wrong:
            self._record_withdrawal(f"the prepared record does not hold: {wrong}")
        elif record.batching is not None:
            self.prepared_batching = BatchingDecision(
                record.batching.merge, record.batching.reason, record.batching.max_rows
            )
        return dispatcher

    async def verify_and_monitor(self, submit_work: SubmitWork, *, is_batching: bool) -> Predict | None:
        """Verify the model if it has no record, and compare live calls from time to time.

        `is_batching`: requests share calls, so the accelerated strategy must be batch-equivalent too. Returns
        the strategy if this has activated it.
        """
        activated = None
        if self._verification is not None:
            await self._verification.wait()
        if self._location is None or self._runtime is None:
            return None
        if self._record is None:
            try:
                if self._verification is None:
                    await self._verify_in_background(self._location)
            except OSError as error:
                logger.warning("the model's acceleration cannot be verified: %s", error)
                return None
            await self._activate_verified(submit_work, is_batching=is_batching)
            activated = self._dispatcher
        if self._dispatcher is not None:
            self._monitor_live_calls(self._dispatcher, submit_work)
        return activated

    def collect_stats(self) -> dict[str, object]:
        return {
            "way": _describe_strategy(self._record, self._dispatcher),
            **dict(zip(NODE_COUNTS, self._counts, strict=True)),
        }

    async def _verify_in_background(self, location: RecordLocation) -> None:
        order = VerificationOrder.from_load_spec(
            self._source, Path(location.folder), location.key, in_background=True
        )
        # In this process's group, with which it is killed: it needs no lifeline of its own.
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "serving.acceleration.verification_process", stdin=asyncio.subprocess.PIPE
        )
        try:
            await child.communicate(msgspec.json.encode(order))
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()

    async def _activate_verified(self, submit_work: SubmitWork, *, is_batching: bool) -> None:
        runtime = self._runtime

        def activate_now() -> None:
            try:
                if (
                    runtime is not None
                    and self.activate(runtime) is not None
                    and is_batching
                    and not runtime.exact
                ):
                    # Requests share calls already, and batch equivalence was checked for the library only.
                    detached.append(self._detach_dispatcher(runtime))
            except Exception:
                logger.exception("the model's acceleration cannot be activated")

        detached: list[FastPathDispatcher] = []
        await run_and_time(submit_work, activate_now)
        for dispatcher in detached:
            await self._activate_if_batch_equivalent(dispatcher, submit_work)

    def _detach_dispatcher(self, runtime: Runtime) -> FastPathDispatcher:
        dispatcher, self._dispatcher = self._dispatcher, None
        cast(AccelerableRuntime, runtime).set_fast_path(None)
        return cast(FastPathDispatcher, dispatcher)

    async def _activate_if_batch_equivalent(
        self, dispatcher: FastPathDispatcher, submit_work: SubmitWork
    ) -> None:
        runtime = cast(VerifiableRuntime, self._runtime)
        decision = await finish_check(
            BatchEquivalenceCheck(check_batch_equivalence(runtime, dispatcher)), submit_work
        )
        if not decision.merge:
            logger.info("acceleration stays off: it is not batch-equivalent, and requests share calls")
            return
        self._dispatcher = dispatcher
        await run_and_time(submit_work, lambda: runtime.set_fast_path(dispatcher))

    # ---- live comparisons

    def _monitor_live_calls(self, dispatcher: FastPathDispatcher, submit_work: SubmitWork) -> None:
        loop = asyncio.get_running_loop()

        def schedule_work(seconds: float, work: Callable[[], object]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node ends
                loop.call_soon_threadsafe(loop.call_later, seconds, work)

        def compare_sample() -> None:
            start = time.perf_counter()
            if self._is_withdrawn_elsewhere():
                dispatcher.use_reference()
                self._dispatcher = None
                return
            if not dispatcher.compare_sample():
                schedule_work(_REST_FACTOR * (time.perf_counter() - start), dispatcher.request_sample)
            self._counts[_COMPARED] += 1

        dispatcher.on_sample = lambda: schedule_work(_DELAY, lambda: submit_work(compare_sample))
        dispatcher.on_withdrawn = self._record_withdrawal
        loop.call_later(_FIRST_DELAY, dispatcher.request_sample)

    def _is_withdrawn_elsewhere(self) -> bool:
        """Whether another node of the version has found a difference."""
        try:
            record = acceleration_record.read_record(self._folder)
        except DamagedRecordError:
            return False
        return record is not None and bool(record.withdrawn)

    def _record_withdrawal(self, reason: str) -> None:
        self._counts[_DIFFERENT] += 1
        self._dispatcher = None
        logger.error(
            "the accelerated prediction differed from the library's; acceleration is off from now on: %s",
            reason,
        )
        try:
            acceleration_record.withdraw_acceleration(self._folder, reason, self._record)
        except (OSError, DamagedRecordError):
            logger.exception("the withdrawal cannot be stored")
        if self._record is not None:
            self._record = msgspec.structs.replace(self._record, withdrawn=reason)

    @property
    def _folder(self) -> Path:
        return Path("" if self._location is None else self._location.folder)


def view_comparison_counts(shared_memory: RequestMarks, slots: int) -> MutableSequence[int] | None:
    """The counts at the end of the shared memory; None without `slots`, which means marks alone."""
    if not slots:
        return None
    return as_cells(memoryview(cast(bytearray, shared_memory))[-8 * len(NODE_COUNTS) :])


def compute_key(model_dir: Path) -> AccelerationKey:
    """What a record for a model must match on this machine. Raises OSError."""
    return AccelerationKey(
        acceleration_record.digest_folder(model_dir),
        acceleration_record.describe_libraries(),
        acceleration_record.describe_processor(),
    )


def allocate_record_location(cache: Path, model_dir: Path, prepared: Path | None = None) -> RecordLocation:
    """The location for a standalone node; removes the oldest records over the limit. Raises OSError."""
    key = compute_key(model_dir)
    root = cache / "acceleration"
    folder = root / hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:32]
    if not folder.is_dir() and root.is_dir():
        oldest_first = sorted(root.iterdir(), key=lambda other: other.stat().st_mtime)
        for other in oldest_first[:-_MAX_RECORDS]:
            shutil.rmtree(other, ignore_errors=True)
    return RecordLocation(str(folder), key, str(prepared or model_dir / PREPARED_FOLDER))


def _describe_strategy(record: AccelerationRecord | None, dispatcher: FastPathDispatcher | None) -> str:
    if record is None or dispatcher is None:
        why = "" if record is None else record.withdrawn or record.failure
        return f"the plain way ({why})" if why else "the plain way"
    strategies = dict.fromkeys(one.way for one in record.ranges if one.way != PLAIN_STRATEGY)
    return f"by {', '.join(strategies)}"
