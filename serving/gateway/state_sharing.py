"""What a server does besides because its state is in a database that other servers may use too."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from autoscaler.pools import NodePool
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import Supervisor
from serving.config import OFF, ServeConfig
from serving.errors import InvalidArgument, NotFound, ServingError
from serving.gateway.api.in_process import AsgiApp
from serving.gateway.api.request_io import Endpoint, error_response
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.control.pack_maintenance import PackMaintenance
from serving.gateway.control.placement.server_load_meter import ServerLoadMeter
from serving.gateway.control.reconciler import Reconciler
from serving.gateway.control.server_scaling.server_scaler import ServerScaler
from serving.gateway.control.state_follower import StateFollower
from serving.gateway.control.status import ServerScope
from serving.gateway.control.version_prefetcher import VersionPrefetcher
from serving.gateway.control.version_sharing import VersionSharing
from serving.gateway.control.work_owner import LeaseTiming, OwnedWork, WorkOwner
from serving.gateway.jobs.job_questions import JobQuestionAnswerer
from serving.gateway.jobs.job_reader import LocalJobReader
from serving.gateway.jobs.log_copies import LogCopies
from serving.gateway.jobs.shared_job_reader import SharedJobReader
from serving.gateway.proxy.prediction_proxy import PredictionProxy
from serving.gateway.server_peers import PeerCollaborators, ServerPeers, build_server_name, identify_server
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.records import JobServer
from serving.gateway.state.shared.postgres_store import PostgresStore
from serving.gateway.thread_pool import ThreadPool
from serving.http_headers import REVISION, Message, Receive, Scope, Send, find_header
from serving.protocols.paths import detect_dialect

# Digits of the largest revision.
_MAX_DIGITS = 18
# A look at the database may take so long before something is said not to be there.
_REFRESH_SECONDS = 1.0


class CommitAwareWork(OwnedWork, Protocol):
    """Work that calls of the API on any server ask for."""

    def apply_commit(self, commit: Commit) -> None:
        """Take up what another server has committed."""


class StateSharing:
    """Use `create_catalog` first."""

    def __init__(self, store: PostgresStore, timing: LeaseTiming | None = None) -> None:
        self._store = store
        self._timing = timing or LeaseTiming()
        self._version_sharing: VersionSharing | None = None
        self._maintenance: PackMaintenance | None = None
        self._prefetcher: VersionPrefetcher | None = None  # where servers know each other
        self._peers: ServerPeers | None = None
        self.own_server: JobServer | None = None
        self.scaler: ServerScaler | None = None  # where servers know each other
        self._log_copies: LogCopies | None = None
        self.console_sessions = store.console_sessions

    def create_version_sharing(
        self, config: ServeConfig, environment: Mapping[str, str], find_awake: Callable[[], Collection[str]]
    ) -> VersionSharing | None:
        """None without the setting `shared_versions_uri`. Raises InvalidArgument for a wrong one.

        `find_awake` returns the uids of versions that have nodes or requests.
        """
        self._find_awake = find_awake
        if config.shared_versions_uri:
            self._version_sharing = VersionSharing(config, environment, self._store.id)
        return self._version_sharing

    def create_log_copies(self, config: ServeConfig, environment: Mapping[str, str]) -> LogCopies | None:
        """None without the setting `shared_versions_uri`."""
        if config.shared_versions_uri:
            uri = f"{config.shared_versions_uri.rstrip('/')}/{self._store.id}.jobs"
            self._log_copies = LogCopies(uri, config.state_dir / "jobs", environment)
        return self._log_copies

    def apply_commit(self, commit: Commit) -> None:
        """Hear of every change."""
        if self._maintenance is not None:
            self._maintenance.apply_commit(commit)
        if self._prefetcher is not None:
            self._prefetcher.apply_commit(commit)

    def create_catalog(
        self,
        on_publish: Callable[[Commit], None],
        on_commit: Callable[[Commit], None],
        on_peer_commit: Callable[[Commit], None],
    ) -> SharedCatalog:
        """`on_peer_commit` is called after `on_publish` with what other servers have committed."""
        self._catalog = SharedCatalog(self._store, on_publish, on_commit, on_peer_commit)
        return self._catalog

    async def refresh_state(self) -> None:
        """Take in all that other servers have committed by now. Raises Unavailable."""
        await self._catalog.refresh()

    def create_peers(
        self,
        config: ServeConfig,
        *,
        proxy: PredictionProxy,
        autoscaler: Autoscaler,
        pool: NodePool,
        deployer: VersionDeployer,
        reconciler: Reconciler,
        load_meter: ServerLoadMeter,
        job_reader: LocalJobReader,
    ) -> ServerPeers | None:
        """None where this server is to answer by itself (setting peer_port).

        Raises InvalidArgument and FailedPrecondition for settings that cannot be used.
        """
        self._server_name = build_server_name(config)
        if config.peer_port != OFF:
            catalog = self._catalog
            questions = JobQuestionAnswerer(job_reader, lambda: catalog.state, lambda: catalog.owns_work)
            parts = PeerCollaborators(
                proxy,
                autoscaler,
                pool,
                deployer,
                reconciler,
                load_meter,
                questions,
                lambda: catalog.owns_work,
                lambda: None if self.scaler is None else self.scaler.report,
            )
            self._peers = ServerPeers(config, self._store.membership, parts)
            self.scaler = ServerScaler.from_settings(config, self._peers.list_servers)
            if self._version_sharing is not None:
                self._prefetcher = VersionPrefetcher(
                    lambda: catalog.state, self._version_sharing, self._peers, reconciler.fetch_files
                )
        elif config.scaled_deployment:
            raise InvalidArgument(
                "scaled_deployment needs the loads of all servers, which they do not tell with peer_port "
                "off: leave one of the two out."
            )
        return self._peers

    def create_job_reader(self, local: LocalJobReader) -> SharedJobReader:
        """`create_log_copies` and `create_peers` come before."""
        return SharedJobReader(
            local, self._peers, lambda: self.own_server, lambda: self._catalog.owns_work, self._log_copies
        )

    async def identify_server(self, config: ServeConfig) -> JobServer:
        """Find out what this server is known by; before that `own_server` is None. Raises Unavailable."""
        id_of_folder = await ThreadPool("server id", 1).run(identify_server, config.state_dir)
        self.own_server = JobServer(id_of_folder, build_server_name(config))
        return self.own_server

    def find_server_scope(self, key: str) -> ServerScope:
        """Of which server a status tells, and the servers of a version, "" for none."""
        owners = self._peers.list_owners(key) if key and self._peers is not None else ()
        return ServerScope(self._server_name, owners)

    def start(
        self, supervisor: Supervisor, works: Sequence[CommitAwareWork], closing: contextlib.AsyncExitStack
    ) -> None:
        """Follow the other servers, and do the works while they are this server's.

        On closing the work is given to another server; before it is ended, call `stop_following`.
        """
        self._follower = StateFollower(self._catalog, self._store.create_listener())
        if self.scaler is not None:
            works = (*works, self.scaler)
        self._owner = WorkOwner(self._catalog, self._store.lease, works, self._timing)
        closing.push_async_callback(self._owner.release)
        # While processes of jobs take their time to end, no other server must begin the jobs.
        closing.push_async_callback(self._owner.start(supervisor).stop)
        self._following = self._follower.start(supervisor)
        if self.scaler is not None:
            closing.push_async_callback(self.scaler.start(supervisor).stop)
        if self._prefetcher is not None:
            # Its last fetch ends first, with all others.
            closing.push_async_callback(self._prefetcher.start(supervisor).stop)
        if self._version_sharing is not None:
            closing.push_async_callback(self._version_sharing.close)
            self._maintenance = PackMaintenance(self._catalog, self._version_sharing, self._find_awake)
            closing.push_async_callback(self._maintenance.start(supervisor).stop)

    async def stop_following(self) -> None:
        """Begin nothing more."""
        self._owner.begin_nothing()
        await self._following.stop()
        await self._follower.close()

    def with_revision(self, app: AsgiApp) -> AsgiApp:
        """Say in each answer which state it was made of, and wait for the one that a request names.

        So a caller sees its own change on whichever server it asks next.
        """

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await self._wait_for_revision(scope)
            except ServingError as error:
                await error_response(error, detect_dialect(scope["path"]))(scope, receive, send)
                return

            async def send_with_revision(message: Message) -> None:
                if message["type"] == "http.response.start":
                    revision = (REVISION, b"%d" % self._catalog.revision)
                    message["headers"] = [*message["headers"], revision]
                await send(message)

            await app(scope, receive, send_with_revision)

        return answer

    def with_not_found_retry(self, endpoint: Endpoint) -> Endpoint:
        """Say that something is not there by the newest state only: another server may just have made it.

        The endpoint is called twice then: one that says so has changed nothing, or what it changed is gone.
        """

        @functools.wraps(endpoint)
        async def call_endpoint(request: Request) -> Response:
            revision = self._catalog.revision
            try:
                return await endpoint(request)
            except NotFound:
                with contextlib.suppress(ServingError, TimeoutError):
                    async with asyncio.timeout(_REFRESH_SECONDS):
                        await self._catalog.refresh()
                if self._catalog.revision == revision:
                    raise
            return await endpoint(request)

        return call_endpoint

    async def _wait_for_revision(self, scope: Scope) -> None:
        """Raises Unavailable if the database cannot be asked."""
        wanted = find_header(scope, REVISION) or b""
        is_known = not wanted.isdigit() or len(wanted) > _MAX_DIGITS or int(wanted) <= self._catalog.revision
        if not is_known:
            # What was answered is committed: one look is enough.
            await self._catalog.refresh()
