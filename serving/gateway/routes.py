"""The routes of the gateway: each method of the table with its endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from starlette.routing import Route

from serving.gateway.api.request_io import Endpoint
from serving.gateway.api.unimplemented import build_refusal
from serving.gateway.methods import METHODS, PREDICTION_METHODS, ApiMethod


def build_routes(
    endpoints: Mapping[str, Endpoint], wrap_endpoint: Callable[[ApiMethod, Endpoint], Endpoint]
) -> list[Route]:
    """A route for each path of each method, named by it; those without an endpoint are refused.

    `around` puts what all requests go through around an endpoint. Predictions have no route: they take the
    short way.
    """
    return [
        Route(
            path,
            wrap_endpoint(method, endpoints.get(name) or build_refusal(name)),
            methods=[method.verb],
            name=name,
        )
        for name, method in METHODS.items()
        if method not in PREDICTION_METHODS
        for path in method.paths
    ]
