"""What a server does besides because others of its database may answer its requests, and it theirs."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from autoscaler import machine
from autoscaler.placement.members import WEIGHT_STEPS
from autoscaler.pools import NodePool
from autoscaler.scaling_loop import Autoscaler
from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.config import ServeConfig
from serving.errors import Unavailable
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.control.placement.placement_demand import PlacementDemand
from serving.gateway.control.placement.server_load_meter import ServerLoadMeter
from serving.gateway.control.placement.server_placement import ServerPlacement, ServerView
from serving.gateway.control.reconciler import Reconciler
from serving.gateway.jobs.job_questions import JobQuestionAnswerer
from serving.gateway.proxy.peers.forwarded_request import answer_forwarded
from serving.gateway.proxy.peers.peer_client import PeerClient, ReceiveLimits
from serving.gateway.proxy.peers.peer_protocol import (
    OWN_VERSIONS,
    HandshakeKey,
    PeerAddress,
    PeerTarget,
    PeerTls,
)
from serving.gateway.proxy.peers.peer_server import PeerServer
from serving.gateway.proxy.prediction_proxy import PredictionProxy
from serving.gateway.state.records import JobServer
from serving.gateway.state.shared.membership import Membership, ScalingReport, ServerRecord
from serving.gateway.thread_pool import ThreadPool
from serving.transport.http_server import listen_tcp

_ID_FILE = "server-id"


class PeerCollaborators(NamedTuple):
    """The parts of a gateway that peers have to do with. `owns_work` tells whether the work is its own."""

    proxy: PredictionProxy
    autoscaler: Autoscaler
    pool: NodePool
    deployer: VersionDeployer
    reconciler: Reconciler
    load_meter: ServerLoadMeter
    questions: JobQuestionAnswerer
    owns_work: Callable[[], bool]
    read_scaling: Callable[[], ScalingReport | None]


class ServerPeers:
    """Use `join` before versions are scaled, and `start` once the gateway can answer.

    Raises InvalidArgument for settings that cannot be used.
    """

    def __init__(
        self,
        config: ServeConfig,
        membership: Membership,
        gateway: PeerCollaborators,
    ) -> None:
        self._config = config
        self._membership = membership
        self._gateway = gateway
        self._tls = PeerTls.from_settings(config)
        self._thread = ThreadPool("peers", 1)
        self._placement: ServerPlacement | None = None
        self._server: PeerServer | None = None
        self._listener: socket.socket | None = None
        self._loops: list[BackgroundLoop] = []

    async def join(self, own: JobServer) -> None:
        """Know the others, and be known to them: then limits of nodes are divided.

        Raises Unavailable if the address cannot be bound, or the database not be asked.
        """
        config, tls, gateway = self._config, self._tls, self._gateway
        secret = await self._thread.run(self._membership.read_secret)
        self._listener = listener = listen_tcp(config.peer_host, int(config.peer_port), "--peer-port")
        port = listener.getsockname()[1]
        self._server = PeerServer(
            functools.partial(answer_forwarded, gateway.proxy),
            gateway.questions.answer,
            HandshakeKey(secret, PeerAddress(own.id, config.peer_host, port)),
            None if tls is None else tls.server,
            config.max_body_bytes,
            versions=OWN_VERSIONS,
        )
        limits = ReceiveLimits(config.max_answer_bytes, gateway.proxy.receive_budget)

        def connect(target: PeerTarget, on_change: Callable[[], None]) -> PeerClient:
            return PeerClient(target, secret, None if tls is None else tls.client, limits, on_change)

        self._placement = placement = ServerPlacement(
            self._membership,
            self._build_own_record(own, port),
            PlacementDemand(gateway.autoscaler, gateway.pool, config.queue_requests),
            read_load=lambda: gateway.load_meter.load.highest,
            owns_work=gateway.owns_work,
            read_scaling=gateway.read_scaling,
            connect=connect,
            on_shares_changed=gateway.reconciler.reshare_nodes,
            find_limit=gateway.reconciler.find_node_limit,
        )
        gateway.deployer.set_share_finder(placement.find_share)
        gateway.proxy.peers = placement
        await placement.renew()

    async def start(self, supervisor: Supervisor) -> None:
        """Answer what others pass on. What they have sent since `join` waits."""
        if self._server is not None and self._listener is not None and self._placement is not None:
            self._server.start(self._listener)
            self._loops = self._placement.start(supervisor)

    def end_start(self) -> None:
        """Versions may be placed here from now on: pilots are ready."""
        if self._placement is not None:
            self._placement.end_start()

    def begin_drain(self) -> None:
        """Take no more requests of others."""
        if self._server is not None:
            self._server.begin_drain()
        if self._placement is not None:
            self._placement.begin_drain()

    async def stop(self) -> None:
        """Answer what others wait for, and take no more."""
        self.begin_drain()
        if self._server is not None:
            await self._server.stop(self._config.request_timeout)

    async def leave(self) -> None:
        """Call it when nothing is answered any more."""
        for loop in self._loops:
            await loop.stop()
        if self._listener is not None:
            self._listener.close()
        if self._placement is not None:
            await self._placement.leave()

    def find_work_owner(self) -> JobServer | None:
        """The other server that does the work, as far as this one knows."""
        found = None if self._placement is None else self._placement.find_work_owner()
        return None if found is None else JobServer(found.id, found.name)

    async def ask(self, server: str, question: bytes, seconds: float) -> bytes | None:
        """Implements `serving.gateway.jobs.shared_job_reader.PeerAsker`."""
        client = None if self._placement is None else self._placement.find_client(server)
        return None if client is None else await client.ask(question, seconds)

    @property
    def owners_revision(self) -> int:
        """Implements `serving.gateway.control.version_prefetcher.Placement`."""
        return 0 if self._placement is None else self._placement.owners_revision

    def is_owner(self, key: str) -> bool:
        return self._placement is not None and self._placement.is_owner(key)

    def list_servers(self) -> list[ServerView]:
        return [] if self._placement is None else self._placement.list_servers()

    def list_owners(self, key: str) -> list[str]:
        """The names of the servers that a version is placed on, as far as this one knows."""
        return [] if self._placement is None else self._placement.list_owners(key)

    @property
    def hops(self) -> tuple[dict[str, int], float]:
        """How many hops ended how, and the seconds of those that were answered."""
        placement = self._placement
        return ({}, 0.0) if placement is None else (dict(placement.hops), placement.hop_seconds)

    def _build_own_record(self, own: JobServer, port: int) -> ServerRecord:
        config, pool = self._config, self._gateway.pool
        return ServerRecord(
            id=own.id,
            name=own.name,
            host=config.peer_host,
            port=port,
            machine=machine.identify_machine(),
            folder=str(config.state_dir),
            memory_bytes=max(1, config.memory_bytes or pool.available_memory()),
            processors=pool.count_cores(),
            weight=WEIGHT_STEPS,
            starting=True,
            protocols=OWN_VERSIONS,
        )


def build_server_name(config: ServeConfig) -> str:
    """What operators know a server by."""
    return f"{socket.gethostname()}:{config.port or os.getpid()}"


def identify_server(folder: Path) -> str:
    """The id of the server of a state folder: the same after a restart, another for a copy of the folder.

    Raises Unavailable.
    """
    file = folder / _ID_FILE
    try:
        try:
            token = file.read_text()
        except FileNotFoundError:
            token = secrets.token_hex(16)
            file.write_text(token)
    except OSError as error:
        raise Unavailable(f"Cannot use {file}: {error.strerror}.") from error
    place = f"{token} {socket.gethostname()} {folder}"
    return hashlib.blake2b(place.encode(), digest_size=8).hexdigest()
