"""Middleware that counts API calls by method and status, and traces them if tracing is on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from serving.config import ServeConfig
from serving.errors import FailedPrecondition
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.http_headers import Receive, Scope, Send

if TYPE_CHECKING:  # OpenTelemetry is imported only where it is switched on
    from serving.gateway.observability.tracing import Tracing

_APIS = ("/v1/", "/v2")
_OTHER = "other"


class ApiMetricsMiddleware:
    """An ASGI application around `app`, whose routes have the ids of API methods as names."""

    def __init__(self, app: Any, stats: PredictionStats, tracing: Tracing | None) -> None:
        self._app = app
        self._stats = stats
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_APIS):
            await self._app(scope, receive, send)
            return
        trace = None if self._tracing is None else self._tracing.begin_trace(scope, scope["method"])
        statuses: list[int] = []

        async def send_and_count(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_and_count)
        finally:
            status = statuses[0] if statuses else 500
            method = getattr(scope.get("route"), "name", _OTHER)
            self._stats.api_calls[method, status] += 1
            if trace is not None:
                trace.end(status, name=method)


def create_tracing(config: ServeConfig) -> Tracing | None:
    """None if the settings have no endpoint.

    Raises InvalidArgument for an invalid endpoint, FailedPrecondition if OpenTelemetry is not installed.
    """
    if not config.otel_endpoint:
        return None
    try:
        from serving.gateway.observability.tracing import Tracing  # noqa: PLC0415  heavy, and may be missing
    except ImportError as error:
        raise FailedPrecondition(
            "Traces (setting otel_endpoint) need OpenTelemetry, which is not installed: "
            "pip install 'pilotlight[otel]'."
        ) from error
    return Tracing(config.otel_endpoint, config.otel_sample)
