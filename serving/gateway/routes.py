"""The routes of the gateway: each method of the table with its endpoint."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import Route

from serving.gateway.api.requests import Endpoint
from serving.gateway.api.unimplemented import refuse
from serving.gateway.methods import METHODS, PREDICTION


def routes(endpoints: Mapping[str, Endpoint]) -> list[Route]:
    """A route for each method, named by it; those without an endpoint are refused.

    Predictions have none: they take the short way.
    """
    return [
        Route(method.path, endpoints.get(name) or refuse(name), methods=[method.verb], name=name)
        for name, method in METHODS.items()
        if method is not PREDICTION
    ]
