"""Opens the server of gRPC beside that of HTTP, where it is switched on (setting `grpc_port`)."""

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
    from serving.transport.grpc_server.server import GrpcServer, MetadataHandler


def bind_grpc_server(
    settings: ServerSettings,
    host: str,
    predictions: PredictionHandler,
    tell: Callable[[], MetadataHandler],
    announce: Callable[[str], None],
    *,
    certificate: CertificateFiles | None = None,
    cross_origin: CrossOriginPolicy = UNENFORCED_POLICY,
) -> GrpcServer | None:
    """The server, with its port taken; None where it is switched off. Only inside of an event loop.

    `tell` makes what answers questions; `announce` is told the address. Raises FailedPrecondition where gRPC
    is not installed, Unavailable if the address cannot be had.
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
        tell(),
        settings,
        most_connections=max_connections_per_port(settings),
        certificate=certificate,
        cross_origin=cross_origin,
    )
    address = server.bind(host, int(settings.grpc_port))
    announce(f"{'grpcs' if certificate else 'grpc'}://{address}")
    return server
