"""Spark's own masters, by the JSON of their web UI.

Beam's job server is the driver of a Spark application: a cancel by Beam ends it. What a killed process has
left running, what waits for a core and whether it has ended are known to the master only. Source:
https://spark.apache.org/docs/latest/spark-standalone.html#monitoring-and-logging
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from batch.engines.engine import WORKER_START_SECONDS, EngineState, PipelineName
from batch.engines.http_calls import HttpStatusError, fetch_json, normalize_url, send_request
from serving.errors import Unavailable

logger = logging.getLogger(__name__)

_DEFAULT_WEB_PORT = 8080
# Seconds within which a cancelled application must end, and within which one may still arrive that was
# being submitted.
_END_WITHIN, _ARRIVE_WITHIN = 10.0, 3.0
_POLL_SECONDS = 0.2
# Beam's job server adds an identifier of its own to the name of the pipeline.
_INVOCATION = re.compile(r"_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_MASTER = re.compile(r"spark://(?P<addresses>.+)")
# What Spark says when it has lost executors, or its master, too often, and when the job server, which is the
# driver, has not ended its last application yet.
_LOST_WORKER = (
    "ExecutorLostFailure",
    "Master removed our application",
    "All masters are unresponsive",
    "FetchFailed",
    "SparkContext was shut down",
    "Only one SparkContext should be running in this JVM",
)


@dataclass(frozen=True, slots=True)
class SparkApplication:
    """An application as a master lists it. `executor_megabytes` is the memory of each of its executors."""

    identifier: str
    pipeline: str
    state: str
    executor_megabytes: int

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SparkApplication:
        name = _INVOCATION.sub("", given["name"])
        return cls(given["id"], name, given["state"], given.get("memoryperexecutor", 0))


@dataclass(frozen=True, slots=True)
class SparkWorker:
    free_cores: int
    cores: int
    free_megabytes: int


@dataclass(frozen=True, slots=True)
class SparkStatus:
    """What a master knows. `active` and `ended` are its applications."""

    is_leader: bool
    workers: tuple[SparkWorker, ...]
    active: tuple[SparkApplication, ...]
    ended: tuple[SparkApplication, ...]

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> SparkStatus:
        """Raises KeyError or TypeError if this is no answer of a master."""
        alive = [one for one in given["workers"] if one["state"] == "ALIVE"]
        return cls(
            given["status"] == "ALIVE",
            tuple(SparkWorker(one["coresfree"], one["cores"], one["memoryfree"]) for one in alive),
            tuple(map(SparkApplication.from_json, given["activeapps"])),
            tuple(map(SparkApplication.from_json, given["completedapps"])),
        )


def find_web_addresses(master: str, web: str | None) -> Sequence[str]:
    """HOST:PORT of the web UI of each master.

    `master` is Beam's --spark_master_url, `web` what our own option says, separated by commas. None for
    anything but a master of Spark's own.
    """
    if web:
        return [one.strip() for one in web.split(",") if one.strip()]
    found = _MASTER.fullmatch(master.strip())
    if found is None:
        return ()
    hosts = [address.rpartition(":")[0] or address for address in found["addresses"].split(",")]
    return [f"{host}:{_DEFAULT_WEB_PORT}" for host in hosts]


class SparkEngine:
    """The masters of a Spark, and the attempts at a job that are called by `pipeline` there.

    Spark repeats the tasks of lost executors by itself, four times. `web_addresses` are those of the masters'
    web UIs; none, or none that answer, and nothing is known but what Beam tells. `is_named` says that the
    operator gave them, so that they have to answer.
    """

    name = "Spark"
    worker_start_seconds = WORKER_START_SECONDS

    def __init__(
        self,
        web_addresses: Sequence[str],
        pipeline: PipelineName,
        attempt: int,
        *,
        is_named: bool = False,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._urls = [normalize_url(one) for one in web_addresses]
        self._pipeline = pipeline
        self._attempt = attempt
        self._must_answer = is_named
        self._clock = clock
        self._wait = wait

    def limit_workers(self, wanted: int) -> int:
        """Spark gives a job the cores that are free, whatever the job wants."""
        return wanted

    def find_state(self) -> EngineState:
        try:
            _, status = self._fetch_status()
        except OSError:
            return EngineState.UNKNOWN
        states = [one.state for one in status.active if self._is_current(one)]
        if states:
            return EngineState.WAITING if "WAITING" in states else EngineState.RUNNING
        has_ended = any(self._is_current(one) for one in status.ended)
        return EngineState.ENDED if has_ended else EngineState.ABSENT

    def find_trouble(self) -> str:
        try:
            _, status = self._fetch_status()
        except OSError as error:
            return f"{error}" if self._must_answer else ""
        waiting = [one for one in status.active if self._is_current(one) and one.state == "WAITING"]
        return _describe_missing_cores(waiting[0], status) if waiting else ""

    def is_worker_lost(self, error: str) -> bool:
        return any(sign in error for sign in _LOST_WORKER)

    def cancel(self) -> None:
        """Applications are looked for until those found have ended, and none can arrive any more."""
        if not self._urls:
            return
        start = self._clock()
        asked: set[str] = set()
        refusal = ""
        while True:
            try:
                url, status = self._fetch_status()
                active = [one for one in status.active if self._pipeline.matches(one.pipeline)]
                for one in active:
                    if one.identifier not in asked:
                        logger.info("ending the application %s of Spark", one.identifier)
                        refusal = _end_application(url, one)
            except OSError as error:
                raise Unavailable(f"{error}") from error
            asked.update(one.identifier for one in active)
            seconds = self._clock() - start
            if not active and (asked or seconds > _ARRIVE_WITHIN):
                return
            if seconds > _END_WITHIN:
                names = ", ".join(one.identifier for one in active)
                raise Unavailable(
                    f"Spark has not ended {names} within {_END_WITHIN:.0f} s. {refusal}".strip()
                )
            self._wait(_POLL_SECONDS)

    def _is_current(self, application: SparkApplication) -> bool:
        return application.pipeline == self._pipeline.format_attempt(self._attempt)

    def _fetch_status(self) -> tuple[str, SparkStatus]:
        """The URL of the master that leads, and what it knows. Raises OSError if none answers."""
        reasons = []
        for url in self._urls:
            try:
                status = SparkStatus.from_json(fetch_json("GET", f"{url}/json/"))
            except OSError as error:
                reasons.append(f"{url}: {error}")
                continue
            except (KeyError, TypeError):
                reasons.append(f"{url}: it is no master of Spark")
                continue
            if status.is_leader:
                self._must_answer = True
                return url, status
            reasons.append(f"{url}: it does not lead")
        if not self._must_answer:
            # A master need not have its web UI where it is by default, and each question takes seconds.
            self._urls = []
        raise OSError(
            f"Spark's master does not answer at {'; '.join(reasons) or 'its web UI'}. Give the address of "
            "that with --spark_master_webui=HOST:PORT."
        )


def _end_application(url: str, application: SparkApplication) -> str:
    """Why it cannot be ended by its master, "" if it can. Raises OSError if there is no answer."""
    body = urlencode({"id": application.identifier, "terminate": "true"}).encode()
    try:
        send_request("POST", f"{url}/app/kill/", body)
    except HttpStatusError as error:
        return f"Its master does not end applications (spark.ui.killEnabled): {error}."
    return ""


def _describe_missing_cores(application: SparkApplication, status: SparkStatus) -> str:
    count = len(status.workers)
    free = sum(worker.free_cores for worker in status.workers)
    cores = sum(worker.cores for worker in status.workers)
    found = (
        f"{free} {'core is' if free == 1 else 'cores are'} free in Spark ({cores} in all, on {count} "
        f"worker{'' if count == 1 else 's'})"
    )
    if any(worker.free_cores for worker in status.workers):
        most = max(worker.free_megabytes for worker in status.workers if worker.free_cores)
        if most < application.executor_megabytes:
            return (
                f"An executor needs {application.executor_megabytes} MB, and the workers of Spark with a "
                f"free core have {most} MB: the job waits. Start workers with more memory, or lower "
                "spark.executor.memory of the job server."
            )
    return (
        f"{found}: the job waits. Start workers, or wait for the end of other applications, which hold all "
        "cores that they can get unless spark.cores.max says otherwise."
    )
