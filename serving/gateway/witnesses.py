"""Those who are told how every prediction ends: counts, traces, the audit log, request and access logs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.errors import LimitReached, ServingError, http_status
from serving.gateway.audit.endpoint import AuditedPrediction, audit_prediction, status_from_response
from serving.gateway.audit.entry import status_from_error
from serving.gateway.audit.recorder import AuditLog
from serving.gateway.request_log import RequestLog
from serving.gateway.tallies import Fare, Tallies
from serving.gateway.targets import Target
from serving.gateway.upstream import Answer

if TYPE_CHECKING:  # OpenTelemetry is imported only where it is switched on
    from serving.gateway.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Witnesses:
    """All of them together. It is told of requests how many seconds ago they began."""

    tallies: Tallies
    log: RequestLog
    audit: AuditLog
    tracing: Tracing | None = None

    def on_refused(
        self, asked: AuditedPrediction, seconds: float, target: Target | None, error: ServingError
    ) -> None:
        """No node has answered a request; `target` is the version it was for, if that is known."""
        scope, status = asked.scope, http_status(error)
        if target is None:
            self.tallies.calls[asked.method.id, status] += 1
        else:
            limit = error.setting if isinstance(error, LimitReached) else ""
            self.tallies.get_or_create(target.spec.key).refused(status, limit)
            self.log.refused(target, scope, time.time() - seconds, status)
        audit_prediction(self.audit, asked, status_from_error(error))

    def answered(self, fare: Fare, target: Target, body: bytes, answer: Answer) -> bool:
        """A node of the version has answered a request; returns whether somebody wants to know more of it."""
        self.tallies.get_or_create(target.spec.key).answered(fare, answer.status, len(body), len(answer.body))
        return self.audit.records_predictions or target.logging is not None or target.access_log

    def tell(
        self, asked: AuditedPrediction, seconds: float, target: Target, body: bytes, answer: Answer
    ) -> None:
        """What they want to know."""
        if self.audit.records_predictions:
            audit_prediction(
                self.audit, asked, status_from_response(answer.status, answer.body, answer.headers)
            )
        if target.logging is not None or target.access_log:
            self.log.offer(target, asked.scope, time.time() - seconds, body, answer, call=asked.metadata)
