"""The node as an ASGI application: loads its version, warms it, then predicts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.config import PredictSettings
from serving.errors import NotFound, ServingError, Unavailable, http_status, to_wire, wrong_method
from serving.node.batcher import Bounds
from serving.node.predict import Predictor
from serving.node.probe import Verdict, judge_merging, warm, warm_briefly
from serving.node.servable import MeasuredPlace, Servable
from serving.node.watch import Board
from serving.phases import Histograms
from serving.runtimes import Runtime, Source, load
from serving.runtimes.threads import ThreadLimit
from serving.wire import Receive, Scope, Send, error_headers, send_error

logger = logging.getLogger(__name__)

_PREDICT = re.compile(r"/v1/(projects/[^/]+/)?models/[^/]+(/versions/[^/]+)?:predict")


@dataclass(frozen=True, slots=True)
class Report:
    """What a node tells once its version is ready."""

    framework: str
    merge: bool
    merge_reason: str
    warnings: tuple[str, ...]
    load_seconds: float
    warm_seconds: float
    imports_tensorflow: bool
    exact: bool

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return asdict(self)


class Node:
    """An ASGI application serving one version.

    `source` says what to load, `waking` that it has been loaded before, so that one row will do to warm it.
    `board` has a byte for each request that may be inside, `histograms` counts the phases of those that were
    answered. `on_ready` is called once with the report,
    `on_failed` once with the error when the version cannot be loaded; both on the event loop.
    `connections` tells how many are open: with one, no request can arrive while another is worked on.
    """

    def __init__(
        self,
        source: Source,
        settings: PredictSettings,
        *,
        board: Board,
        histograms: Histograms | None = None,
        waking: bool,
        on_ready: Callable[[Report], None],
        on_failed: Callable[[ServingError], None],
        connections: Callable[[], int],
    ) -> None:
        self._connections = connections
        self._source = source
        self._settings = settings
        self._board = board
        self._histograms = histograms
        self._waking = waking
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        self._servable: Servable | None = None
        self._predictor: Predictor | None = None
        self._started = time.monotonic()
        self._router = Starlette(
            routes=_ROUTES,
            exception_handlers={404: _not_found, 405: _wrong_method},
            lifespan=self._lifespan,
        )
        self._router.state.node = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Predictions take the short way; everything else is routed."""
        if scope["type"] != "http" or not scope["path"].endswith(":predict"):
            await self._router(scope, receive, send)
        elif (match := _PREDICT.fullmatch(scope["path"])) is None:
            await send_error(send, _no_such_path(scope["path"]))
        elif scope["method"] != "POST":
            await send_error(send, wrong_method(scope["method"], scope["path"], "POST"))
        elif self._predictor is None:
            await send_error(send, Unavailable("The model is being loaded.", retry_after=1))
        else:
            await self._predictor.answer(scope, receive, send, bare=match[1] is None)

    # ---- loading

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        loading = asyncio.create_task(self._start())
        yield
        loading.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            # In the compute thread, so that /healthz answers meanwhile.
            runtime, verdict, typical, report = await loop.run_in_executor(self._thread, self._load)
        except ServingError as error:
            self._on_failed(error)
            return
        user_code = bool(self._source.packages or self._source.prediction_class)
        place = MeasuredPlace(self._thread, may_inline=not user_code)
        if typical is not None:
            place.learn(typical)
        bounds = Bounds(
            merge_rows=self._settings.merge_rows if verdict.merge else 1,
            queue_requests=self._settings.queue_requests,
            queue_bytes=self._settings.queue_bytes,
        )
        self._servable = Servable(runtime, place, bounds, alone=lambda: self._connections() < 2)
        self._predictor = Predictor(self._servable, self._settings, self._board, self._histograms)
        # What is loaded stays: the collector need not look at it again.
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

    def _load(self) -> tuple[Runtime, Verdict, float | None, Report]:
        ThreadLimit(self._settings.threads).apply()
        start = time.perf_counter()
        runtime = load(self._source)
        loaded = time.perf_counter()
        verdict = self._judge(runtime)
        typical = self._warm(runtime, verdict)
        warmed = time.perf_counter()
        for warning in runtime.warnings:
            logger.warning(warning)
        report = Report(
            framework=runtime.framework,
            merge=verdict.merge,
            merge_reason=verdict.reason,
            warnings=runtime.warnings,
            load_seconds=round(loaded - start, 4),
            warm_seconds=round(warmed - loaded, 4),
            imports_tensorflow="tensorflow" in sys.modules,
            exact=runtime.exact,
        )
        return runtime, verdict, typical, report

    def _warm(self, runtime: Runtime, verdict: Verdict) -> float | None:
        """The seconds of a typical call, None if that is not known."""
        if self._waking:
            warm_briefly(runtime)
            return None
        return warm(runtime, (self._settings.merge_rows, 1) if verdict.merge else (1,))

    def _judge(self, runtime: Runtime) -> Verdict:
        match self._settings.merge_requests:
            case "on":
                return Verdict(True, "asked for")
            case "off":
                return Verdict(False, "switched off")
            case _:
                return judge_merging(runtime)

    # ---- seeing

    @property
    def ready(self) -> bool:
        """Whether the version is loaded and warmed."""
        return self._servable is not None

    def stats(self) -> dict[str, Any]:
        """Counts since the start, for people and dashboards."""
        stats: dict[str, Any] = {
            "pid": os.getpid(),
            "uptimeSeconds": round(time.monotonic() - self._started, 1),
        }
        if self._servable is not None and self._predictor is not None:
            stats |= {"requests": self._predictor.requests, "errors": self._predictor.errors}
            stats |= self._servable.stats()
        return stats


async def _live(_: Request) -> Response:
    return JSONResponse({"status": "live"})


async def _ready(request: Request) -> Response:
    if not _node(request).ready:
        return _answer(Unavailable("The model is being loaded.", retry_after=1))
    return JSONResponse({"status": "ready"})


async def _stats(request: Request) -> Response:
    return JSONResponse(_node(request).stats())


async def _status(request: Request) -> Response:
    """Model status in the shape TensorFlow Serving gives it."""
    state = "AVAILABLE" if _node(request).ready else "LOADING"
    status = {"version": "1", "state": state, "status": {"error_code": "OK", "error_message": ""}}
    return JSONResponse({"model_version_status": [status]})


# Made here, not for each node: compiling the paths takes 2 ms, which a pilot has spent before it forks.
_ROUTES = (
    Route("/healthz", _live),
    Route("/readyz", _ready),
    Route("/stats", _stats),
    Route("/v1/models/{model}", _status),
    Route("/v1/models/{model}/versions/{version}", _status),
)


def _node(request: Request) -> Node:
    node: Node = request.app.state.node
    return node


def _no_such_path(path: str) -> NotFound:
    return NotFound(
        f"Nothing is at {path}. A node answers POST /v1/projects/PROJECT/models/MODEL[/versions/VERSION]"
        ":predict, POST /v1/models/MODEL[/versions/VERSION]:predict, GET /healthz, /readyz and /stats."
    )


def _not_found(request: Request, _: Exception) -> Response:
    return _answer(_no_such_path(request.url.path))


def _wrong_method(request: Request, _: Exception) -> Response:
    return _answer(wrong_method(request.method, request.url.path, "GET"))


def _answer(error: ServingError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse(to_wire(error), status_code=http_status(error), headers=headers)
