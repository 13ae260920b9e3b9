"""Observers of every finished prediction: statistics, waits, traces, audit, request and access logs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.errors import LimitReached, ServingError, http_status
from serving.gateway.audit.audit_log import AuditLog
from serving.gateway.audit.endpoint_audit import record_prediction, status_from_response
from serving.gateway.audit.log_entry import CallStatus, status_from_error
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.gateway.observability.request_log import RequestLog
from serving.gateway.observability.wait_recorder import HELD_SECONDS, WaitRecorder, is_wait
from serving.gateway.proxy.node_client import NodeReply
from serving.gateway.proxy.observation import ObservedPrediction, RequestTiming
from serving.gateway.proxy.routing_table import RouteTarget
from serving.gateway.request_context import ensure_request_id

if TYPE_CHECKING:  # OpenTelemetry is imported only where it is switched on
    from serving.gateway.observability.tracing import Tracing


@dataclass(frozen=True, slots=True)
class PredictionObservers:
    """All observers as one; see `serving.gateway.proxy.observation.PredictionObserver`."""

    stats: PredictionStats
    waits: WaitRecorder
    request_log: RequestLog
    audit: AuditLog
    tracing: Tracing | None = None

    def on_refused(
        self,
        prediction: ObservedPrediction,
        timing: RequestTiming,
        target: RouteTarget | None,
        error: ServingError,
    ) -> None:
        scope, status, seconds = prediction.scope, http_status(error), timing[0]
        if target is None:
            self.stats.api_calls[prediction.method.id, status] += 1
        else:
            limit = error.setting if isinstance(error, LimitReached) else ""
            self.stats.get_or_create(target.spec.key).count_refusal(status, limit)
            self.request_log.log_refusal(target, scope, time.time() - seconds, status)
            if seconds >= HELD_SECONDS:
                self.waits.record_refusal(target.spec.key, timing, error, ensure_request_id(scope))
        self._audit(prediction, status_from_error(error))

    def count_answer(
        self, timing: RequestTiming, target: RouteTarget, body: bytes, reply: NodeReply, request_id: bytes
    ) -> bool:
        uid = target.spec.key
        self.stats.get_or_create(uid).count_answer(timing, reply.status, len(body), len(reply.body))
        # One comparison for all that were quick.
        if timing[0] >= HELD_SECONDS and is_wait(timing):
            self.waits.record_answer(uid, timing, reply, request_id.decode())
        return self.audit.records_predictions or target.logging is not None or target.access_log

    def on_answered(
        self,
        prediction: ObservedPrediction,
        timing: RequestTiming,
        target: RouteTarget,
        body: bytes,
        reply: NodeReply,
    ) -> None:
        """Write the answered prediction to the logs that want it."""
        if self.audit.records_predictions:
            self._audit(prediction, status_from_response(reply.status, reply.body, reply.headers))
        if target.logging is not None or target.access_log:
            self.request_log.log_request(
                target, prediction.scope, time.time() - timing[0], body, reply, metadata=prediction.metadata
            )

    def _audit(self, prediction: ObservedPrediction, status: CallStatus) -> None:
        record_prediction(
            self.audit,
            prediction.method,
            prediction.scope,
            status,
            resource=prediction.resource,
            permission=prediction.permission,
        )
