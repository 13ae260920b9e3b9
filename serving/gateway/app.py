"""The gateway application: creates all components and routes, and starts and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route

from autoscaler import machine
from autoscaler.activator import Activator
from autoscaler.errors import StartFailedError
from autoscaler.pools import LineCallback, Node, NodeListener, NodePool, NodeState
from autoscaler.pools.local_pool import LocalPool
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import Supervisor
from serving.config import ServeConfig
from serving.errors import Internal, ServingError, Unavailable, find_shortage
from serving.gateway.access.access_control import AccessControl, require_permission
from serving.gateway.access.token_store import TokenStore
from serving.gateway.api import projects
from serving.gateway.api.batch_requests import BatchRequestsApi
from serving.gateway.api.discovery import DiscoveryApi, build_refusal_endpoint
from serving.gateway.api.in_process import AsgiApp, InProcessApi
from serving.gateway.api.introspection.acceleration import AccelerationApi
from serving.gateway.api.introspection.events import EventsApi
from serving.gateway.api.introspection.model_schemas import ModelSchemasApi
from serving.gateway.api.introspection.servers import ServersApi
from serving.gateway.api.introspection.status import StatusApi
from serving.gateway.api.introspection.version_history import VersionHistoryApi
from serving.gateway.api.introspection.version_logs import VersionLogsApi
from serving.gateway.api.introspection.version_waits import VersionWaitsApi
from serving.gateway.api.jobs import JobsApi
from serving.gateway.api.log_entries import LogEntriesApi
from serving.gateway.api.models import ModelsApi
from serving.gateway.api.openapi import OpenApiDocumentApi
from serving.gateway.api.operations import OperationsApi
from serving.gateway.api.partial_responses import with_checked_fields, with_selected_fields
from serving.gateway.api.policies import PoliciesApi
from serving.gateway.api.protocol_metadata import CatalogModelInfo, ProtocolMetadataApi, with_default_project
from serving.gateway.api.request_io import Endpoint, error_response, json_response
from serving.gateway.api.studies.studies import StudiesApi
from serving.gateway.api.studies.study_operations import StudyOperationsApi
from serving.gateway.api.studies.trials import TrialsApi
from serving.gateway.api.versions import VersionsApi
from serving.gateway.audit.audit_log import AuditLog
from serving.gateway.audit.completions import find_completions
from serving.gateway.audit.endpoint_audit import audit_intent, audit_result
from serving.gateway.catalog import Catalog
from serving.gateway.console_entry import CONSOLE_PATHS, ConsoleEntry, wants_page
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.control.file_check import InputChecker
from serving.gateway.control.operation_runner import OperationRunner
from serving.gateway.control.placement.server_load_meter import ServerLoadMeter
from serving.gateway.control.reconciler import Reconciler
from serving.gateway.control.retention import RecordPruner
from serving.gateway.control.schema_registry import SchemaRegistry
from serving.gateway.control.status import Readiness, ReadinessState, ServerStatus
from serving.gateway.control.watchdog import Watchdog
from serving.gateway.jobs.job_queue import JobQueue
from serving.gateway.jobs.job_reader import Curves, JobReader, LocalJobReader
from serving.gateway.jobs.kinds.prediction.prediction_kind import JOB_COMMAND, PredictionKind
from serving.gateway.jobs.kinds.training.bucket_curves import BucketCurveReader
from serving.gateway.jobs.kinds.training.training_kind import TrainingKind
from serving.gateway.jobs.kinds.training.trials.tuning_director import TuningDirector
from serving.gateway.methods import METHODS, PREDICTION_METHODS, ApiMethod
from serving.gateway.observability.api_metrics import ApiMetricsMiddleware, create_tracing
from serving.gateway.observability.event_publisher import EventPublisher
from serving.gateway.observability.event_stream import EventStream
from serving.gateway.observability.history_recorder import HistoryRecorder
from serving.gateway.observability.metric_definitions import HopCounts, ServerCounts, SuggestionCounts
from serving.gateway.observability.metrics import Metrics, MetricSources, RefusalCountingWaker
from serving.gateway.observability.observers import PredictionObservers
from serving.gateway.observability.prediction_stats import ModelStatistics, PredictionStats
from serving.gateway.observability.request_log import RequestLog
from serving.gateway.observability.wait_recorder import WaitRecorder
from serving.gateway.proxy.prediction_proxy import PredictionProxy
from serving.gateway.proxy.rate_limits import ApiRateLimits, PredictionLimits, with_rate_limits
from serving.gateway.proxy.routing_table import RoutingTable
from serving.gateway.request_adapter import RequestAdapterMiddleware
from serving.gateway.request_context import with_request_id_header
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.store import StateStore
from serving.gateway.studies.parameter_importance import ParameterImportance
from serving.gateway.studies.suggestion_process import SuggesterLauncher
from serving.gateway.studies.suggestion_service import SuggestionService
from serving.gateway.studies.trial_suggester import TrialSuggester
from serving.gateway.thread_pool import ThreadPool
from serving.http_headers import Message, Receive, Scope, Send
from serving.names import check_project
from serving.protocols.paths import detect_dialect, path_not_found_error, wrong_method_error
from serving.scratch_folders import sweep_scratch

if TYPE_CHECKING:  # imported only where they are switched on
    from serving.gateway.api.metadata_service import MetadataService
    from serving.gateway.console.charts.metric_curves import MetricCurveReader
    from serving.gateway.control.placement.server_placement import ServerView
    from serving.gateway.state_sharing import StateSharing

logger = logging.getLogger(__name__)


def build_routes(
    endpoints: Mapping[str, Endpoint], wrap_endpoint: Callable[[ApiMethod, Endpoint], Endpoint]
) -> list[Route]:
    """A route for each path of each method, with its id as name; methods without an endpoint are refused.

    Predictions have no route: the HTTP server hands them to the `PredictionProxy` directly.
    """
    return [
        Route(
            path,
            wrap_endpoint(method, endpoints.get(name) or build_refusal_endpoint(name)),
            methods=[method.verb],
            name=name,
        )
        for name, method in METHODS.items()
        if method not in PREDICTION_METHODS
        for path in method.paths
    ]


# Seconds after start in which /readyz may fail because pilots are still importing frameworks.
_PILOTS_READY_WITHIN = 60.0
# The supervisor's key for the trouble that connections cannot be accepted.
_ACCEPT_TROUBLE = "accepting"


def _ignore_death(_: str) -> None:
    pass


class PoolFactory(Protocol):
    """Makes the pool of a gateway; see `create_local_pool`."""

    def __call__(
        self, config: ServeConfig, listener: NodeListener, on_line: LineCallback, supervisor: Supervisor
    ) -> NodePool:
        """`listener` hears of every change of a node, `on_line` gets every line that a node prints."""


def create_local_pool(
    config: ServeConfig, listener: NodeListener, on_line: LineCallback, supervisor: Supervisor
) -> NodePool:
    return LocalPool(
        listener,
        drain=config.request_timeout,
        supervisor=supervisor,
        starts=config.node_starts or 2 * machine.count_cores(),
        pilots=config.pilots,
        on_line=on_line,
    )


class Gateway:
    """The ASGI application in front of all nodes.

    `environment` is the server's own, from which that of child processes is made; `setting_sources` are where
    settings came from that are no defaults. `job_command` starts the processes of jobs. `create_pool` chooses
    the kind of pool. `tokens` is None while access control is off. `on_death` is called with the reason when
    a background task has ended and the server must stop. `refused` returns how many connections and requests
    the server rejected, by reason. `sharing` is given where other servers may use the store too. Raises
    InvalidArgument for invalid settings.
    """

    def __init__(
        self,
        config: ServeConfig,
        store: StateStore,
        environment: Mapping[str, str],
        *,
        job_command: Sequence[str] = JOB_COMMAND,
        create_pool: PoolFactory = create_local_pool,
        tokens: TokenStore | None = None,
        on_death: Callable[[str], None] = _ignore_death,
        refused: Callable[[], Mapping[str, int]] = dict,
        setting_sources: Mapping[str, str] = MappingProxyType({}),
        sharing: StateSharing | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._setting_sources = setting_sources
        self._access = None if tokens is None else AccessControl(tokens)
        self._supervisor = Supervisor(on_death)
        self._events = EventStream(config.event_readers)
        self._event_publisher = EventPublisher(self._events, self._find_title)
        self._activator = Activator(queue_requests=config.queue_requests, queue_bytes=config.queue_bytes)
        self._pool = create_pool(config, self._on_node_changed, self._on_node_output, self._supervisor)
        self._autoscaler = Autoscaler(
            self._activator,
            self._pool,
            tick=config.tick,
            memory_bytes=config.memory_bytes,
            on_trouble=self._report_start_failure,
            supervisor=self._supervisor,
            on_event=self._event_publisher.on_scaling_event,
            before_start=self._fetch_files if sharing is not None else None,
        )
        version_sharing = (
            None
            if sharing is None
            else sharing.create_version_sharing(config, environment, lambda: self._autoscaler.awake)
        )
        self._deployer = VersionDeployer(
            config,
            environment,
            self._activator,
            self._autoscaler,
            self._pool.count_cores,
            sharing=version_sharing,
        )
        self._reconciler = Reconciler(self._deployer, self._autoscaler, self._pool, self._supervisor)
        self._routing_table = RoutingTable(self._deployer.build_node_spec)
        self._audit = AuditLog(config)
        self._sharing = sharing
        self._catalog = (
            Catalog(store, self._on_publish, self._on_commit)
            if sharing is None
            else sharing.create_catalog(self._on_publish, self._on_commit, self._on_peer_commit)
        )
        self._schema_registry = SchemaRegistry(
            self._catalog, self._routing_table, self._activator, config.request_timeout, self._supervisor
        )
        self._operation_runner = OperationRunner(self._catalog, self._deployer, self._supervisor, config)
        self._suggestions = SuggestionService(
            SuggesterLauncher(self._pool, self._deployer.select_framework_pilot("")).connect, self._supervisor
        )
        director = TuningDirector(self._catalog, self._suggestions.suggest_points)
        training_kind = TrainingKind(config, environment, director, self._deployer.select_framework_pilot)
        self._bucket_curves = BucketCurveReader(self._supervisor, training_kind.environment)
        self._jobs = JobQueue(
            self._catalog,
            self._supervisor,
            [
                PredictionKind(config, environment, self._deployer.select_pilot, job_command),
                training_kind,
            ],
            self._operation_runner,
            config.state_dir / "jobs",
            pool=self._pool,
            max_versions=config.max_versions_per_project,
            fetch_files=self._reconciler.fetch_files,
            find_server=lambda: None if sharing is None else sharing.own_server,
            log_copies=None if sharing is None else sharing.create_log_copies(config, environment),
        )
        self._metric_curves: MetricCurveReader | None = None
        local_job_reader = LocalJobReader(self._jobs, self._read_curves)
        self._pruner = RecordPruner(self._catalog, self._jobs, config)
        self._request_log = RequestLog.from_config(config, environment, self._supervisor)
        self._prediction_stats = PredictionStats()
        self._waits = WaitRecorder()
        self._api_limits = ApiRateLimits(config)
        self._tracing = create_tracing(config)
        self._prediction_proxy = PredictionProxy(
            self._routing_table,
            self._activator,
            PredictionObservers(
                self._prediction_stats, self._waits, self._request_log, self._audit, self._tracing
            ),
            config,
            limits=PredictionLimits.from_config(config),
            access=self._access,
            default_project=check_project(config.default_project),
            refresh_state=None if sharing is None else sharing.refresh_state,
        )
        self._watchdog = Watchdog(
            self._pool,
            lambda node: self._prediction_proxy.node_clients.get(node.id),
            config.call_seconds,
        )
        self._server_status = ServerStatus(
            lambda: self._catalog.state, self._activator, self._autoscaler, self._pool
        )
        self._server_load_meter = ServerLoadMeter(self._autoscaler, self._pool)
        self._history = HistoryRecorder(lambda: self._autoscaler.awake, self._pool, self._prediction_stats)
        self._statistics = ModelStatistics(self._server_status, self._prediction_stats)
        self._metrics = Metrics(
            self._server_status,
            self._prediction_stats,
            MetricSources(
                spans=self._get_span_counts,
                audit=self._audit.stats,
                logs=self._request_log.get_counts,
                errors=lambda: self._supervisor.errors,
                refused=refused,
                suggestions=self._get_suggestion_counts,
                server_load=lambda: self._server_load_meter.load,
                hops=self._get_hop_counts,
                server_counts=self._get_server_counts,
            ),
        )
        self._peers = (
            None
            if sharing is None
            else sharing.create_peers(
                config,
                proxy=self._prediction_proxy,
                autoscaler=self._autoscaler,
                pool=self._pool,
                deployer=self._deployer,
                reconciler=self._reconciler,
                load_meter=self._server_load_meter,
                job_reader=local_job_reader,
            )
        )
        self._job_reader: JobReader = (
            local_job_reader if sharing is None else sharing.create_job_reader(local_job_reader)
        )
        self._in_process_api = InProcessApi(self, self._prediction_proxy)
        self._is_ready = False
        self._is_stop_announced = False
        self._start_error: ServingError | None = None
        self._pilot_start: asyncio.Task[None] | None = (
            None  # done once the pilots that are needed at start are ready
        )
        self._router = Starlette(
            routes=[*self._build_api_routes(), *self._build_console_routes()],
            lifespan=self._lifespan,
            exception_handlers={
                ServingError: _handle_serving_error,
                404: _handle_not_found,
                405: _handle_wrong_method,
                Exception: _handle_internal_error,
            },
        )
        http_app: AsgiApp = RequestAdapterMiddleware(
            ApiMetricsMiddleware(self._router, self._prediction_stats, self._tracing),
            self._prediction_proxy,
            config.max_header_bytes,
        )
        self._http_app = http_app if sharing is None else sharing.with_revision(http_app)

    @property
    def prediction_handler(self) -> PredictionProxy:
        return self._prediction_proxy

    def create_metadata_service(self) -> MetadataService:
        from serving.gateway.api.metadata_service import MetadataService  # noqa: PLC0415  only where gRPC is switched on

        return MetadataService(
            self._create_model_info,
            wrap_endpoint=self._wrap_endpoint,
            stats=self._prediction_stats,
            tracing=self._tracing,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Routes everything but predictions, which `prediction_handler` gets."""
        if scope["type"] != "http":
            await self._router(scope, receive, self._with_start_error(send))
        else:
            await self._http_app(scope, receive, with_request_id_header(scope, send))

    def _build_api_routes(self) -> list[Route]:
        config = self._config
        models = ModelsApi(self._catalog, self._reconciler.with_usage, config.max_models_per_project)
        versions = VersionsApi(
            self._catalog,
            self._operation_runner,
            self._reconciler.with_usage,
            config.max_versions_per_project,
        )
        operations = OperationsApi(self._catalog, self._operation_runner)
        importance = ParameterImportance(self._suggestions.measure_importance)
        jobs = JobsApi(self._catalog, self._jobs, self._job_reader, importance, config, access=self._access)
        studies = StudiesApi(self._catalog, config.max_studies_per_project)
        trials = TrialsApi(self._catalog, TrialSuggester(self._catalog, self._suggestions))
        study_operations = StudyOperationsApi(self._catalog)
        status = StatusApi(
            self._server_status,
            self._metrics,
            None if self._sharing is None else self._sharing.find_server_scope,
        )
        schemas = ModelSchemasApi(self._schema_registry, lambda: self._catalog.state, config.single_output)
        openapi = OpenApiDocumentApi(lambda: self._catalog.state, self._access, config)
        discovery = DiscoveryApi(tokens=self._access is not None)
        logs = VersionLogsApi(
            config.state_dir / "logs", lambda: self._catalog.state, separate_projects=self._access is not None
        )
        endpoints = {
            "pilotlight.root": self._get_service_info,
            "pilotlight.healthz": self._get_healthz,
            "pilotlight.readyz": self._get_readyz,
            "pilotlight.openapi": openapi.get_document,
            "pilotlight.docs": openapi.get_docs_page,
            "pilotlight.stats": self._get_stats,
            "pilotlight.metrics": status.get_metrics,
            "pilotlight.nodes": status.list_nodes,
            "pilotlight.servers": ServersApi(self._list_servers).list,
            "pilotlight.events": EventsApi(self._events, self._access).follow,
            "pilotlight.models.why": status.explain_model,
            "pilotlight.versions.why": status.explain_version,
            "pilotlight.versions.history": VersionHistoryApi(self._history, lambda: self._catalog.state).get,
            "pilotlight.versions.waits": VersionWaitsApi(self._waits, lambda: self._catalog.state).get,
            "pilotlight.versions.logs": logs.get,
            "pilotlight.versions.acceleration": AccelerationApi(
                self._deployer, lambda: self._catalog.state
            ).get,
            "pilotlight.models.schema": schemas.get_model_schema,
            "pilotlight.versions.schema": schemas.get_version_schema,
            "pilotlight.jobs.progress": jobs.get_progress,
            "pilotlight.jobs.models": jobs.list_models,
            "pilotlight.jobs.importance": jobs.get_importance,
            "pilotlight.entries.list": LogEntriesApi(
                lambda: self._catalog.state,
                self._job_reader,
                self._access,
                self._api_limits,
                config.request_timeout,
            ).list,
            "pilotlight.discovery.rest": discovery.get_document,
            "pilotlight.discovery.list": discovery.list_apis,
            "pilotlight.batch": BatchRequestsApi(
                self._in_process_api,
                seconds=config.request_timeout,
                max_answer_bytes=config.max_answer_bytes,
                unsent_bytes=config.unsent_bytes,
            ).answer_batch,
            "projects.getConfig": projects.get_config,
            "projects.locations.list": projects.list_locations,
            "projects.locations.get": projects.get_location,
            "projects.models.create": models.create,
            "projects.models.list": models.list,
            "projects.models.get": models.get,
            "projects.models.patch": models.patch,
            "projects.models.delete": models.delete,
            "projects.models.versions.create": versions.create,
            "projects.models.versions.list": versions.list,
            "projects.models.versions.get": versions.get,
            "projects.models.versions.patch": versions.patch,
            "projects.models.versions.delete": versions.delete,
            "projects.models.versions.setDefault": versions.set_default,
            "projects.jobs.create": jobs.create,
            "projects.jobs.list": jobs.list,
            "projects.jobs.get": jobs.get,
            "projects.jobs.patch": jobs.patch,
            "projects.jobs.cancel": jobs.cancel,
            "projects.locations.studies.create": studies.create,
            "projects.locations.studies.list": studies.list,
            "projects.locations.studies.get": studies.get,
            "projects.locations.studies.delete": studies.delete,
            "projects.locations.studies.trials.create": trials.create,
            "projects.locations.studies.trials.list": trials.list,
            "projects.locations.studies.trials.listOptimalTrials": trials.list_optimal,
            "projects.locations.studies.trials.suggest": trials.suggest,
            "projects.locations.studies.trials.get": trials.get,
            "projects.locations.studies.trials.delete": trials.delete,
            "projects.locations.studies.trials.addMeasurement": trials.add_measurement,
            "projects.locations.studies.trials.complete": trials.complete,
            "projects.locations.studies.trials.checkEarlyStoppingState": trials.check_early_stopping_state,
            "projects.locations.studies.trials.stop": trials.stop,
            "projects.locations.operations.get": study_operations.get,
            "projects.locations.operations.cancel": study_operations.cancel,
            "projects.operations.list": operations.list,
            "projects.operations.get": operations.get,
            "projects.operations.cancel": operations.cancel,
            **PoliciesApi(self._catalog, self._access).build_endpoints(),
            **ProtocolMetadataApi(self._create_model_info).build_endpoints(),
        }
        if self._sharing is not None:
            endpoints = {
                name: self._sharing.with_not_found_retry(endpoint) for name, endpoint in endpoints.items()
            }
        return build_routes(
            {
                name: audit_intent(self._audit, METHODS[name], endpoint)
                for name, endpoint in endpoints.items()
            },
            self._wrap_endpoint,
        )

    def _build_console_routes(self) -> list[Route]:
        if not self._config.console:
            return []
        entry = ConsoleEntry(self._create_console)
        return [Route(path, entry) for path in CONSOLE_PATHS]

    def _create_console(self) -> AsgiApp:
        from serving.gateway.console.app import ConsoleApp  # noqa: PLC0415  not before the first visit
        from serving.gateway.console.health_checks import HealthCheckRunner, WriteCheck  # noqa: PLC0415
        from serving.gateway.console.services import ConsoleServices  # noqa: PLC0415
        from serving.gateway.console.sessions import LocalSessions, SharedSessions  # noqa: PLC0415

        rows = None if self._sharing is None else self._sharing.console_sessions
        return ConsoleApp(
            ConsoleServices(
                config=self._config,
                setting_sources=self._setting_sources,
                api=self._in_process_api,
                access=self._access,
                audit=self._audit,
                sessions=LocalSessions() if rows is None else SharedSessions(rows),
                read_state=lambda: self._catalog.state,
                server_status=self._server_status,
                list_servers=self._list_servers,
                history=self._history,
                waits=self._waits,
                metrics=self._metrics,
                prediction_stats=self._prediction_stats,
                inspect_files=self._deployer.inspect_files,
                input_checker=InputChecker.from_config(self._config, self._environment),
                health_checks=HealthCheckRunner(self._config, self._environment),
                write_check=WriteCheck(self._catalog.check_writable),
                get_readiness=self._get_readiness,
                read_curves=lambda record: self._job_reader.read_curves(record, self._config.request_timeout),
            )
        )

    async def _read_curves(self, job_dir: str) -> Curves:
        """The metrics that event files in a job's folder have."""
        from serving.gateway.console.charts.metric_curves import MetricCurveReader  # noqa: PLC0415  at first use

        if self._metric_curves is None:
            self._metric_curves = MetricCurveReader(self._bucket_curves.read)
        return await self._metric_curves.read(job_dir)

    def _create_model_info(self) -> CatalogModelInfo:
        return CatalogModelInfo(
            self._catalog.state,
            self._get_readiness().state is ReadinessState.READY,
            self._schema_registry,
            self._statistics,
            self._config.server_name,
            self._config.default_project,
        )

    def _wrap_endpoint(self, method: ApiMethod, endpoint: Endpoint) -> Endpoint:
        """What a call goes through, from the outside to the endpoint."""
        endpoint = with_rate_limits(self._api_limits, method, with_checked_fields(method, endpoint))
        if self._access is not None:
            endpoint = require_permission(self._access, method, endpoint)
        audited = with_selected_fields(method, audit_result(self._audit, method, endpoint))
        return with_default_project(method, self._config.default_project, audited)

    def _with_start_error(self, send: Send) -> Send:
        """`send`, with the reason of a failed start in place of its traceback if the reason is known."""

        async def send_with_reason(message: Message) -> None:
            if message["type"] == "lifespan.startup.failed" and self._start_error is not None:
                message = {**message, "message": f"The server cannot start. {self._start_error.message}"}
            await send(message)

        return send_with_reason

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        try:
            async with self._run_components():
                yield
        except Exception as error:
            self._start_error = error if isinstance(error, ServingError) else find_shortage(error)
            raise

    @contextlib.asynccontextmanager
    async def _run_components(self) -> AsyncGenerator[None]:
        await self._catalog.open()
        if self._access is not None:
            await self._access.refresh_tokens()
        own_server = None if self._sharing is None else await self._sharing.identify_server(self._config)
        uids = {record.uid for record in self._catalog.state.versions.values()}
        cleanup_threads = ThreadPool("sweep", 1)
        await cleanup_threads.run(self._deployer.delete_orphaned_files, uids)
        await cleanup_threads.run(self._jobs.remove_stale_files, self._catalog.state)
        await cleanup_threads.run(sweep_scratch)
        async with contextlib.AsyncExitStack() as closing:
            # Pilots and nodes may have left folders too: they are killed where they do not end.
            closing.push_async_callback(cleanup_threads.run, sweep_scratch)
            closing.callback(self._catalog.close)
            if self._access is not None:
                closing.callback(self._access.close)
            if self._tracing is not None:
                closing.push_async_callback(self._tracing.close)
            await closing.enter_async_context(self._supervisor)
            self._audit.start(self._supervisor)
            closing.push_async_callback(self._audit.close)
            self._request_log.start()
            closing.push_async_callback(self._request_log.close)
            await closing.enter_async_context(self._pool)
            if self._peers is not None and own_server is not None:
                closing.push_async_callback(self._peers.leave)
                await self._peers.join(own_server)
            self._start_loops(closing)
            if self._peers is not None:
                closing.push_async_callback(self._peers.stop)
                await self._peers.start(self._supervisor)
            # Long-lived objects: exempt them from garbage collection.
            gc.freeze()
            # Requests make no cycles. At the default of 700 allocations the collector would look through all
            # waiting requests again with every burst that is read: a seventh of the time under overload.
            gc.set_threshold(10_000, 10, 10)
            gc.enable()
            yield

    def _start_loops(self, closing: contextlib.AsyncExitStack) -> None:
        """Start the background loops; each is stopped on closing, even if stopping another fails."""
        self._is_ready = True
        self._reconciler.apply_commit(Commit.from_state(self._catalog.state))
        self._pilot_start = self._supervisor.start_task(
            "lighting", self._pool.wait_for_pilots(_PILOTS_READY_WITHIN)
        )
        if (peers := self._peers) is not None:
            self._pilot_start.add_done_callback(lambda _: peers.end_start())
        self._activator.connect_waker(RefusalCountingWaker(self._autoscaler, self._metrics))
        closing.push_async_callback(self._reconciler.persist_usage, self._catalog)
        closing.callback(self._bucket_curves.stop)
        loops = [
            self._autoscaler.start(),
            self._reconciler.start(self._catalog),
            self._watchdog.start(self._supervisor),
            self._pruner.start(self._supervisor),
            self._history.start(self._supervisor),
            self._server_load_meter.start(self._supervisor),
        ]
        if self._access is not None:
            loops.append(self._access.start(self._supervisor))
        for loop in loops:
            closing.push_async_callback(loop.stop)
        if self._sharing is not None:
            self._sharing.start(self._supervisor, (self._operation_runner, self._jobs), closing)
            self._supervisor.start_task("job", self._jobs.copy_missing_logs(), title="copies of logs")
        closing.push_async_callback(self._suggestions.close)
        closing.push_async_callback(self._jobs.suspend)
        closing.callback(self._operation_runner.suspend)
        closing.callback(self._mark_unready)
        if self._sharing is not None:
            closing.push_async_callback(self._sharing.stop_following)
        else:
            self._operation_runner.resume()
            self._jobs.resume()

    def _mark_unready(self) -> None:
        self._is_ready = False

    def _on_publish(self, commit: Commit) -> None:
        if self._access is not None:
            self._access.set_policies(commit.after.policies)
        self._routing_table.apply_commit(commit)
        for before, after in commit.iter_changed_versions():
            if before is not None and after is None:
                self._metrics.forget_version(before.uid)
                self._history.forget_version(before.uid)
                self._waits.forget_version(before.uid)
        if self._sharing is not None:
            self._sharing.apply_commit(commit)
        if self._is_ready:
            self._reconciler.apply_commit(commit)
            self._jobs.fail_jobs_missing_version(commit.after)

    def _on_commit(self, commit: Commit) -> None:
        for ending in find_completions(commit.before, commit.changes):
            self._audit.record_operation_result(ending.call, ending.status, ending.operation)
        self._event_publisher.on_commit(commit)

    def _on_peer_commit(self, commit: Commit) -> None:
        """Do what concerns this server of what another one has committed."""
        if not self._is_ready:
            return
        for before, after in commit.iter_changed_versions():
            if before is not None and (after is None or after.uid != before.uid):
                self._supervisor.start_task("removal", self._deployer.remove(before), title=str(before.name))
        self._operation_runner.apply_commit(commit)
        self._jobs.apply_commit(commit)

    def _get_span_counts(self) -> Mapping[str, int]:
        return {} if self._tracing is None else self._tracing.span_counts.get_result_counts()

    def _get_suggestion_counts(self) -> SuggestionCounts:
        answered, failed, seconds = self._suggestions.get_answer_totals()
        return SuggestionCounts({"answered": answered, "failed": failed}, seconds)

    def _list_servers(self) -> Sequence[ServerView]:
        return [] if self._peers is None else self._peers.list_servers()

    def _get_hop_counts(self) -> HopCounts:
        return HopCounts(*(({}, 0.0) if self._peers is None else self._peers.hops))

    def _get_server_counts(self) -> ServerCounts:
        scaler = None if self._sharing is None else self._sharing.scaler
        return ServerCounts() if scaler is None else ServerCounts(scaler.desired, dict(scaler.errors))

    def _find_title(self, key: str) -> str:
        """The name of a version that is scaled, "" for another."""
        tracked = self._autoscaler.versions.get(key)
        return "" if tracked is None else tracked.spec.title

    async def _fetch_files(self, uid: str) -> None:
        """Have the files of a READY version on this server: another one may have prepared them."""
        record = self._reconciler.find_record(uid)
        if record is None:
            return
        try:
            await self._reconciler.fetch_files(record)
        except ServingError as error:
            raise StartFailedError(error.message) from error

    def _report_start_failure(self, uid: str, reason: str) -> None:
        self._reconciler.report_failure(self._catalog, uid, reason)

    def _on_node_changed(self, node: Node) -> None:
        self._activator.on_node_changed(node)
        self._autoscaler.on_node_changed(node)
        self._metrics.on_node_changed(node)
        self._watchdog.on_node_changed(node)
        self._event_publisher.on_node_changed(node)
        if node.state is NodeState.READY:
            self._schema_registry.record_schema(self._reconciler.find_record(node.key), node)
        if node.state is NodeState.GONE:
            self._prediction_proxy.close_node_client(node)

    def _on_node_output(self, node: Node, line: str) -> None:
        record = self._reconciler.find_record(node.key)
        if record is not None and (target := self._routing_table.find_version_target(record)).console_log:
            self._request_log.log_node_output(target, node.id, line)

    def announce_stop(self) -> None:
        """Be not ready from now on, so that nobody sends more requests; those that come are answered."""
        self._is_stop_announced = True

    def end_streams(self) -> None:
        """End the answers that have no end of their own: the server is to stop."""
        self._events.close()
        if self._peers is not None:
            self._peers.begin_drain()

    def set_accept_trouble(self, reason: str) -> None:
        """Report why connections cannot be accepted; "" once they can."""
        if reason:
            self._supervisor.report_trouble(_ACCEPT_TROUBLE, reason)
        else:
            self._supervisor.clear_trouble(_ACCEPT_TROUBLE)

    def _get_readiness(self) -> Readiness:
        if self._is_stop_announced:
            return Readiness(ReadinessState.STOPPING, "The server is stopping.")
        if not self._is_ready:
            if self._pilot_start is None:
                return Readiness(ReadinessState.STARTING, "The server is starting.")
            return Readiness(ReadinessState.STOPPING, "The server is stopping.")
        if troubles := self._supervisor.list_troubles():
            return Readiness(ReadinessState.FAILING, " ".join(troubles))
        if self._pilot_start is not None and not self._pilot_start.done():
            return Readiness(
                ReadinessState.STARTING,
                "The server is starting: its pilots import the frameworks that versions need.",
            )
        return Readiness()

    async def _get_service_info(self, request: Request) -> Response:
        if self._config.console and wants_page(request):
            return RedirectResponse("/console/", 307, headers={"vary": "accept"})
        return json_response(
            {
                "service": "pilotlight",
                "docs": "/docs",
                **({"console": "/console/"} if self._config.console else {}),
                "openapi": "/openapi.json",
                "health": "/readyz",
                "api": "/v1/projects/PROJECT/models",
            }
        )

    async def _get_healthz(self, _: Request) -> Response:
        return json_response({"status": "live"})

    async def _get_readyz(self, _: Request) -> Response:
        readiness = self._get_readiness()
        if readiness.state is not ReadinessState.READY:
            return error_response(Unavailable(readiness.reason, retry_after=1))
        return json_response({"status": "ready"})

    async def _get_stats(self, _: Request) -> Response:
        state = self._catalog.state
        jobs: Counter[str] = Counter()
        for (_project, kind), count in state.job_index.states.items():
            jobs[kind] += count
        return json_response(
            {
                "models": len(state.models),
                "versions": len(state.versions),
                "jobs": jobs,
                "auditLog": self._audit.stats(),
                "requestLog": await self._request_log.sum_counts(),
            }
        )


async def _handle_serving_error(request: Request, error: Exception) -> Response:
    return _render_error(request, error if isinstance(error, ServingError) else Internal(str(error)))


async def _handle_not_found(request: Request, _: Exception) -> Response:
    hint = (
        "The API is below /v1/projects/PROJECT; /docs has all there is, and docs/api.md and "
        "docs/protocols.md explain it."
    )
    return _render_error(request, path_not_found_error(request.method, request.url.path, hint))


async def _handle_wrong_method(request: Request, _: Exception) -> Response:
    # Each method of a path has a route of its own.
    routes = (route for route in request.app.routes if isinstance(route, Route))
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    allow = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
    return _render_error(request, wrong_method_error(request.method, request.url.path, allow))


async def _handle_internal_error(request: Request, error: Exception) -> Response:
    response = _render_error(request, find_shortage(error) or Internal("Internal error encountered."))
    # Starlette raises the error once more, for the log, and uvicorn then closes the connection.
    response.headers["connection"] = "close"
    return response


def _render_error(request: Request, error: ServingError) -> Response:
    return error_response(error, detect_dialect(request.scope["path"]))
