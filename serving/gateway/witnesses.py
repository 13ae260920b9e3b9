"""Those who are told how every prediction ends: counts, traces, the audit log, request and access logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from serving.errors import LimitReached, ServingError, http_status
from serving.gateway.audit.endpoint import answered, predicted
from serving.gateway.audit.entry import status_of
from serving.gateway.audit.recorder import Audit
from serving.gateway.methods import PREDICTION
from serving.gateway.request_log import RequestLog
from serving.gateway.tallies import Course, Tallies
from serving.gateway.targets import Target
from serving.gateway.upstream import Answer
from serving.wire import Scope

if TYPE_CHECKING:  # OpenTelemetry is imported only where it is switched on
    from serving.gateway.tracing import Tracing


class Witnesses:
    """All of them together."""

    def __init__(
        self, tallies: Tallies, request_log: RequestLog, audit: Audit, tracing: Tracing | None = None
    ) -> None:
        self.tallies = tallies
        self.log = request_log
        self.audit = audit
        self.tracing = tracing

    def begin(self, scope: Scope) -> Account:
        """A request has come."""
        return Account(self, scope)


class Account:
    """What they are told of one request. `target` is the version it is for, once that is known."""

    __slots__ = ("_scope", "_start", "_witnesses", "target", "trace")

    def __init__(self, witnesses: Witnesses, scope: Scope) -> None:
        self._witnesses = witnesses
        self._scope = scope
        self._start = time.time()
        self.trace = None if witnesses.tracing is None else witnesses.tracing.begin(scope, PREDICTION.id)
        self.target: Target | None = None

    def refused(self, error: ServingError) -> None:
        """No node has answered it."""
        witnesses, target, status = self._witnesses, self.target, http_status(error)
        if target is None:
            witnesses.tallies.calls[PREDICTION.id, status] += 1
        else:
            limit = error.setting if isinstance(error, LimitReached) else ""
            witnesses.tallies.of(target.spec.key).refused(status, limit)
            witnesses.log.refused(target, self._scope, self._start, status)
        self._end(status)
        predicted(witnesses.audit, self._scope, status_of(error))

    def answered(self, target: Target, course: Course, body: bytes, answer: Answer) -> None:
        """A node of the version has answered it."""
        witnesses = self._witnesses
        self.target = target
        witnesses.tallies.of(target.spec.key).answered(course, answer.status, len(answer.body))
        self._end(answer.status)
        if witnesses.audit.predictions:
            predicted(witnesses.audit, self._scope, answered(answer.status, answer.body))
        if target.logging is not None or target.access_log:
            witnesses.log.offer(target, self._scope, self._start, body, answer)

    def _end(self, status: int) -> None:
        if self.trace is not None:
            self.trace.end(status, version="" if self.target is None else str(self.target.name))
