"""Runs the verification in a process of its own: a crash or a hang there costs one candidate, nothing else.

The process is a fork of its caller, which must have a single thread and must not have predicted anything. It
imports nothing that the caller has imported, such as the framework in a node that was forked from a pilot.
Verification needs forks as Linux has them.

In the background the caller is a process of its own, and takes a limited share of a processor only: either
`start_in_background` forks it, or it is `python -m serving.acceleration.verification_process`, with a
VerificationOrder as JSON on its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

import msgspec

from serving import acceleration_record
from serving.acceleration.activation import read_matching_record, store_result
from serving.acceleration.candidates import AccelerableRuntime
from serving.acceleration.cpu_share import CpuShareLimit
from serving.acceleration.verification import VerifiableRuntime, verify_candidates
from serving.acceleration_record import AccelerationKey, AccelerationRecord
from serving.errors import ServingError
from serving.frameworks import load_frameworks
from serving.runtimes import LoadSpec, find_loader, load_model
from serving.runtimes.framework_detection import detect_framework
from serving.runtimes.thread_limit import ThreadLimit

logger = logging.getLogger(__name__)

# Seconds without a sign of life after which a verification is killed, and seconds for loading the model.
_SILENCE_SECONDS = 30
_LOAD_SECONDS = 300
# How many candidates may crash or hang before there is no further attempt.
_MAX_ATTEMPTS = 4
_PR_SET_PDEATHSIG = 1
_LOCK_FILE = ".lock"
NO_CANDIDATES = "There is no acceleration for this kind of model."


class VerificationOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The model to verify and the folder for its acceleration record.

    `patience` is in seconds. `in_background`: only a share of a busy processor is used.
    """

    folder: str
    key: AccelerationKey
    model_dir: str
    framework: str = ""
    threads: int = 1
    patience: int = _SILENCE_SECONDS
    in_background: bool = False

    @classmethod
    def from_load_spec(
        cls, spec: LoadSpec, folder: Path, key: AccelerationKey, *, in_background: bool = False
    ) -> VerificationOrder:
        return cls(
            folder=str(folder),
            key=key,
            model_dir=str(spec.model_dir),
            framework=spec.framework,
            threads=spec.threads,
            in_background=in_background,
        )

    def to_load_spec(self) -> LoadSpec:
        return LoadSpec(Path(self.model_dir), self.framework, threads=self.threads)


def find_obstacle() -> str:
    """Why this process cannot run a verification, "" if it can."""
    if sys.platform != "linux":
        return "Verification needs Linux."
    return "Verification needs a single-threaded process." if threading.active_count() > 1 else ""


def is_verifiable(spec: LoadSpec) -> bool:
    """Whether a model may have candidates: those with user code have none."""
    framework = load_frameworks().get(spec.framework)
    return not (spec.packages or spec.prediction_class or (framework and framework.runs_user_code))


def is_verified_first(spec: LoadSpec) -> bool:
    """Whether a new version is verified before it serves; if not, a node does it in the background."""
    try:
        framework = load_frameworks().get(spec.framework) or detect_framework(
            spec.model_dir, spec.prediction_class
        )
    except ServingError:
        return False
    return is_verifiable(spec) and framework.verified_first and not find_obstacle()


def run_in_subprocess(
    order: VerificationOrder, *, load_function: Callable[[LoadSpec], object] = load_model
) -> AccelerationRecord:
    """Verifies the model's candidates in a fork of this process; stores and returns the record.

    Errors of the verification become the record's `failure`. Raises OSError if the record cannot be written.
    """
    begun = time.perf_counter()
    with contextlib.suppress(ServingError):  # the fork raises it again
        find_loader(order.to_load_spec())  # imports the framework for all forks
    excluded: dict[str, str] = {}
    failure = find_obstacle()
    for _ in range(_MAX_ATTEMPTS if not failure else 0):
        candidate, reason = _run_attempt(order, excluded, load_function)
        if not reason:
            record = read_matching_record(Path(order.folder), order.key)
            if record is not None:
                return record
            reason = "it left no record"
        if not candidate:
            failure = f"The verification failed: {reason.rstrip('.')}."
            break
        logger.warning("the verification of %r ended early: %s", candidate, reason)
        excluded[candidate] = reason
    else:
        failure = failure or "The verification failed again and again: " + "; ".join(
            f"{name}: {reason}" for name, reason in excluded.items()
        )
    logger.warning("%s", failure)
    tried = tuple(
        acceleration_record.CandidateOutcome(name=name, refused=reason) for name, reason in excluded.items()
    )
    record = AccelerationRecord(
        key=order.key, tried=tried, failure=failure, seconds=round(time.perf_counter() - begun, 4)
    )
    acceleration_record.write_record(Path(order.folder), record)
    return record


def _run_attempt(
    order: VerificationOrder, excluded: dict[str, str], load_function: Callable[[LoadSpec], object]
) -> tuple[str, str]:
    """Forks and waits; returns the candidate it last worked on, and why it failed, "" if it did not."""
    reading, writing = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        _run_child(order, excluded, load_function, writing, parent)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().decode(errors="replace").split("\n")
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    candidate, reason = (lines[-2:-1] or [""])[0].partition("\t")[::2]
    if code == -signal.SIGALRM:
        return candidate, f"it took more than {order.patience} s"
    if code < 0:
        return candidate, f"it ended with {signal.Signals(-code).name}"
    return candidate, reason or ("" if code == 0 else f"it ended with exit code {code}")


def _run_child(
    order: VerificationOrder,
    excluded: dict[str, str],
    load_function: Callable[[LoadSpec], object],
    pipe: int,
    parent: int,
) -> NoReturn:
    """The fork's program. The last line that it writes to the pipe is the candidate it works on, a tab, and
    the error, if any."""
    code = 1
    try:
        _die_with_parent(parent)
        # The kernel ends what hangs, even in native code.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGALRM,))
        signal.alarm(_LOAD_SECONDS)
        _verify_and_store(
            order, excluded, load_function, lambda text: _report_progress(pipe, text, order.patience)
        )
        code = 0
    except ServingError as error:
        _report_progress(pipe, f"\t{error.message}", order.patience)
    except Exception as error:
        _report_progress(pipe, f"\t{type(error).__name__}: {error}", order.patience)
    finally:
        # Without the interpreter's own exit: everything that this would clean up is the parent's.
        os._exit(code)


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(
        _PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), *map(ctypes.c_ulong, (0, 0, 0))
    )
    if os.getppid() != parent:
        os._exit(1)


def _report_progress(pipe: int, text: str, silence_seconds: int) -> None:
    signal.alarm(silence_seconds)
    os.write(pipe, text.replace("\n", " ").encode() + b"\n")


def _verify_and_store(
    order: VerificationOrder,
    excluded: dict[str, str],
    load_function: Callable[[LoadSpec], object],
    report: Callable[[str], None],
) -> None:
    limit = CpuShareLimit()
    if order.in_background:
        limit.start()
    ThreadLimit(order.threads).apply()
    folder = Path(order.folder)
    runtime = load_function(order.to_load_spec())
    report("")
    begun = time.perf_counter()
    if not isinstance(runtime, AccelerableRuntime) or not runtime.list_candidates():
        acceleration_record.write_record(
            folder,
            AccelerationRecord(key=order.key, failure=NO_CANDIDATES),
        )
        return
    result = verify_candidates(
        cast(VerifiableRuntime, runtime), excluded=excluded, report=report, clock=limit.clock
    )
    store_result(folder, order.key, result, time.perf_counter() - begun)


@dataclass(frozen=True, slots=True)
class BackgroundVerification:
    """A process that verifies a model; its end of the pipe is closed when it has ended."""

    pid: int
    pipe: int

    async def wait(self) -> None:
        """Wait until it has ended; a caller that is cancelled kills it."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self.pipe, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self.pipe)
            os.close(self.pipe)
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # it has nothing more to do
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start_in_background(order: VerificationOrder) -> BackgroundVerification:
    """Fork a process that verifies the model, as `run_in_subprocess` does. It shares what is imported."""
    reading, writing = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(writing)
        return BackgroundVerification(child, reading)
    try:
        os.close(reading)
        _die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, which is for the parent
        _verify_unless_done(order)
    except Exception:
        logger.exception("the model's acceleration cannot be verified")
    finally:
        os._exit(0)


def _verify_unless_done(order: VerificationOrder) -> None:
    """Verify the model, unless another process has done it. Raises OSError."""
    folder = Path(order.folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if read_matching_record(folder, order.key) is None:
            run_in_subprocess(order)


def main() -> None:
    """Runs the order on standard input, unless another process has done it."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    _die_with_parent(os.getppid())
    limit = CpuShareLimit()
    limit.start()
    try:
        _verify_unless_done(msgspec.json.decode(sys.stdin.buffer.read(), type=VerificationOrder))
    finally:
        limit.stop()  # the interpreter gives up the handler before it ends


if __name__ == "__main__":
    main()
