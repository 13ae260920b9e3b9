"""What the pages of the console stand on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serving.config import ServeConfig
from serving.gateway.access.access_control import AccessControl
from serving.gateway.api.in_process import InProcessApi
from serving.gateway.audit.audit_log import AuditLog
from serving.gateway.console.health_checks import HealthCheckRunner, WriteCheck
from serving.gateway.console.sessions import SessionStore
from serving.gateway.control.file_check import FileFindings, InputChecker
from serving.gateway.control.status import Readiness, ServerStatus
from serving.gateway.observability.history_recorder import HistoryRecorder
from serving.gateway.observability.metrics import Metrics
from serving.gateway.observability.prediction_stats import PredictionStats
from serving.gateway.observability.wait_recorder import WaitRecorder
from serving.gateway.state.catalog_state import CatalogState
from serving.gateway.state.records import JobRecord
from serving.resources import Version
from tuning.metrics.event_curves import Curves

if TYPE_CHECKING:  # not imported where there is no database
    from serving.gateway.control.placement.server_placement import ServerView


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleServices:
    """The parts of the gateway that pages read.

    What has a method of the API is read and changed by `api`. `access` is None while access control is off.
    """

    config: ServeConfig
    setting_sources: Mapping[str, str]
    api: InProcessApi
    access: AccessControl | None
    audit: AuditLog
    sessions: SessionStore
    read_state: Callable[[], CatalogState]
    server_status: ServerStatus
    list_servers: Callable[[], Sequence[ServerView]]
    history: HistoryRecorder
    waits: WaitRecorder
    metrics: Metrics
    prediction_stats: PredictionStats
    inspect_files: Callable[[Version], Awaitable[FileFindings | None]]
    input_checker: InputChecker
    health_checks: HealthCheckRunner
    write_check: WriteCheck
    get_readiness: Callable[[], Readiness]
    read_curves: Callable[[JobRecord], Awaitable[Curves]]
