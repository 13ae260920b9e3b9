"""Binds the gRPC server's port, if the setting grpc_port is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.config import OFF, ServerSettings
from serving.errors import FailedPrecondition
from serving.transport.cross_origin import UNENFORCED_POLICY, CrossOriginPolicy
from serving.transport.http_server import max_connections_per_port
from serving.transport.request import PredictionHandler
from serving.transport.tls import CertificateFiles

if TYPE_CHECKING:  # gRPC is imported only where it is switched on
    from serving.transport.grpc_server.server import GrpcServer, ModelServiceHandler


def bind_grpc_server(
    settings: ServerSettings,
    host: str,
    predictions: PredictionHandler,
    make_metadata_service: Callable[[], ModelServiceHandler],
    announce: Callable[[str], None],
    *,
    certificate: CertificateFiles | None = None,
    cross_origin: CrossOriginPolicy = UNENFORCED_POLICY,
) -> GrpcServer | None:
    """The gRPC server with its port bound; None if the setting is off. Call it inside of an event loop.

    `announce` is called with the address. Raises FailedPrecondition if grpcio is not installed, Unavailable
    if the address cannot be bound.
    """
    if settings.grpc_port == OFF:
        return None
    try:
        from serving.transport.grpc_server.server import GrpcServer  # noqa: PLC0415  heavy, and may be missing
    except ImportError as error:
        raise FailedPrecondition(
            "gRPC (setting grpc_port) needs grpcio, which is not installed: pip install 'pilotlight[grpc]'."
        ) from error
    server = GrpcServer(
        predictions,
        make_metadata_service(),
        settings,
        most_connections=max_connections_per_port(settings),
        certificate=certificate,
        cross_origin=cross_origin,
    )
    address = server.bind(host, int(settings.grpc_port))
    announce(f"{'grpcs' if certificate else 'grpc'}://{address}")
    return server
