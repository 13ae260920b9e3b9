"""Reflection: what grpcurl and its like ask a server for, its services and their messages.

Version 1 and the alpha version that came before it are the same but for their name; newer tools ask for the
first, older ones for the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

from serving.protocols.protos import pool

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def handlers(services: Sequence[str]) -> list[Any]:
    """The services of reflection, for a server of these `services`."""
    found = pool()
    for file in (health_pb2, reflection_pb2):
        found.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
    servicer = aio.ReflectionServicer((*services, SERVICES[1]), found)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": method})
        for service in SERVICES
    ]
