"""The faster ways of a node's model: taken up when it is loaded, studied if nothing is known, and watched.

A small share of live calls is compared with the library's answers, after they were answered and where calls
compute. The first difference ends the use of all faster ways, for this node and those that come after.
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
from serving.acceleration.activation import activate_fast_path, read_matching_record
from serving.acceleration.candidates import AccelerableRuntime, Predict
from serving.acceleration.dispatch import FastPathDispatcher
from serving.acceleration.verification import VerifiableRuntime
from serving.acceleration.verification_process import (
    VerificationOrder,
    is_verifiable,
    is_verified_first,
    run_in_subprocess,
)
from serving.acceleration_record import (
    PLAIN_STRATEGY,
    AccelerationKey,
    AccelerationRecord,
    DamagedRecordError,
)
from serving.latency_histograms import NODE_COUNTS, as_cells
from serving.node.batch_equivalence import (
    BatchEquivalenceCheck,
    SubmitWork,
    check_batch_equivalence,
    finish_check,
    run_and_time,
)
from serving.node.request_marks import RequestMarks
from serving.runtimes import LoadSpec, Runtime

logger = logging.getLogger(__name__)

# A comparison rests so many times as long as the last one took, and waits until its answer is out.
_REST_FACTOR = 500
_DELAY, _FIRST_DELAY = 0.005, 1.0
_COMPARED, _DIFFERENT = range(len(NODE_COUNTS))
# Verdicts that the cache of nodes without a gateway keeps.
_MAX_RECORDS = 100


class RecordLocation(msgspec.Struct, frozen=True):
    """Where the verdict on a model is, or is to be, and what it must hold for."""

    folder: str
    key: AccelerationKey


class AccelerationController:
    """That of one node.

    `find` tells the place of the verdict; it is asked only for a model that may have faster ways. `counts`
    are those of `NODE_COUNTS`. `studied_seconds` is how long `study` took.
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
        self.verification_seconds = 0.0

    def verify_before_load(self) -> None:
        """Have the model studied before it is loaded, if that is quick; for a new version."""
        if not is_verified_first(self._source):
            return
        begun = time.perf_counter()
        place = self._find_location()
        try:
            run_in_subprocess(VerificationOrder.from_spec(self._source, Path(place.folder), place.key))
        except Exception:
            # The version is none the worse for it.
            logger.exception("the faster ways of the model cannot be studied")
        self.verification_seconds = time.perf_counter() - begun

    def activate(self, runtime: Runtime) -> Predict | None:
        """Have the runtime go its fastest proven ways, which are returned; None: the plain path serves."""
        if (
            not is_verifiable(self._source)
            or not isinstance(runtime, AccelerableRuntime)
            or not runtime.list_candidates()
        ):
            return None
        try:
            self._location = self._find_location()
        except OSError as error:
            logger.warning("there is no place for the verdict on faster ways: %s", error)
            return None
        self._runtime = runtime
        folder = Path(self._location.folder)
        self._record = read_matching_record(folder, self._location.key)
        if self._record is not None:
            self._dispatcher = activate_fast_path(runtime, folder, self._record)
            logger.info("predictions go %s", _describe_strategy(self._record, self._dispatcher))
        return self._dispatcher

    async def verify_and_monitor(self, submit_work: SubmitWork, *, is_batching: bool) -> None:
        """Study the model if nothing is known of it, and compare live calls from time to time.

        `merging` says whether requests share calls, which faster ways must not make wrong.
        """
        if self._location is None or self._runtime is None:
            return
        if self._record is None:
            try:
                await self._verify_in_background(self._location)
            except OSError as error:
                logger.warning("the faster ways of the model cannot be studied: %s", error)
                return
            await self._activate_verified(submit_work, is_batching=is_batching)
        if self._dispatcher is not None:
            self._monitor_live_calls(self._dispatcher, submit_work)

    def collect_stats(self) -> dict[str, object]:
        """For people and dashboards."""
        return {
            "way": _describe_strategy(self._record, self._dispatcher),
            **dict(zip(NODE_COUNTS, self._counts, strict=True)),
        }

    async def _verify_in_background(self, place: RecordLocation) -> None:
        order = VerificationOrder.from_spec(self._source, Path(place.folder), place.key)
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
                    # Requests share calls already, and that was proven for the plain path only.
                    waiting.append(self._detach_dispatcher(runtime))
            except Exception:
                logger.exception("the faster ways of the model cannot be used")

        waiting: list[FastPathDispatcher] = []
        await run_and_time(submit_work, activate_now)
        for switch in waiting:
            await self._activate_if_batch_equivalent(switch, submit_work)

    def _detach_dispatcher(self, runtime: Runtime) -> FastPathDispatcher:
        switch, self._dispatcher = self._dispatcher, None
        cast(AccelerableRuntime, runtime).set_fast_path(None)
        return cast(FastPathDispatcher, switch)

    async def _activate_if_batch_equivalent(
        self, dispatcher: FastPathDispatcher, submit_work: SubmitWork
    ) -> None:
        runtime = cast(VerifiableRuntime, self._runtime)
        verdict = await finish_check(
            BatchEquivalenceCheck(check_batch_equivalence(runtime, dispatcher)), submit_work
        )
        if not verdict.merge:
            logger.info("the plain path serves: its calls may be shared, those of the faster ways may not")
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
            verdict = acceleration_record.read_record(self._folder)
        except DamagedRecordError:
            return False
        return verdict is not None and bool(verdict.withdrawn)

    def _record_withdrawal(self, reason: str) -> None:
        self._counts[_DIFFERENT] += 1
        self._dispatcher = None
        logger.error("a faster way was wrong for a request, so the plain path serves from now on: %s", reason)
        try:
            acceleration_record.withdraw_acceleration(self._folder, reason)
        except (OSError, DamagedRecordError):
            logger.exception("that cannot be written down")

    @property
    def _folder(self) -> Path:
        return Path("" if self._location is None else self._location.folder)


def find_comparison_counts(shared_memory: RequestMarks, slots: int) -> MutableSequence[int] | None:
    """The counts behind the marks of a board with that many `slots`; 0: it has none."""
    if not slots:
        return None
    return as_cells(memoryview(cast(bytearray, shared_memory))[-8 * len(NODE_COUNTS) :])


def cached_record_location(cache: Path, model_dir: Path) -> RecordLocation:
    """The place for a model without a gateway; the oldest of too many verdicts go. Raises OSError."""
    key = AccelerationKey(
        acceleration_record.digest_folder(model_dir),
        acceleration_record.describe_libraries(),
        acceleration_record.describe_processor(),
    )
    root = cache / "acceleration"
    folder = root / hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:32]
    if not folder.is_dir() and root.is_dir():
        oldest_first = sorted(root.iterdir(), key=lambda other: other.stat().st_mtime)
        for other in oldest_first[:-_MAX_RECORDS]:
            shutil.rmtree(other, ignore_errors=True)
    return RecordLocation(str(folder), key)


def _describe_strategy(record: AccelerationRecord | None, dispatcher: FastPathDispatcher | None) -> str:
    """How calls are answered, in words."""
    if record is None or dispatcher is None:
        why = "" if record is None else record.withdrawn or record.failure
        return f"the plain way ({why})" if why else "the plain way"
    ways = dict.fromkeys(one.way for one in record.ranges if one.way != PLAIN_STRATEGY)
    return f"by {', '.join(ways)}"
