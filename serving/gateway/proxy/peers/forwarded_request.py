"""Answers requests that another server has passed on: it has checked who may send them, and how many."""

from __future__ import annotations

from serving.errors import ServingError
from serving.gateway.proxy.peers.peer_server import ForwardedCall
from serving.gateway.proxy.prediction_proxy import PredictionProxy, ProxiedRequest
from serving.gateway.proxy.route import parse_route
from serving.gateway.proxy.timeouts import drop_tracebacks


def answer_forwarded(proxy: PredictionProxy, call: ForwardedCall) -> None:
    """Answer a call by a node of this server, or decline it.

    It is declined where this server does not know the version yet, or any more, or has no room for it: it may
    find that out while the call waits for a node.
    """
    route = parse_route(call.head, proxy.default_project)
    try:
        target = proxy.routing_table.find_target(route.target_key)
    except ServingError as error:
        drop_tracebacks(error)
        call.decline()
        return
    key = target.spec.key
    if (
        route.problem is not None
        or key != call.version_key
        or (proxy.peers is not None and proxy.peers.is_full(key))
    ):
        call.decline()
        return
    request = call.state = ProxiedRequest(proxy, call, route)
    request.admit_forwarded(target, call.decline)
    try:
        request.dispatch()
    except ServingError as error:
        request.refuse(error)
        drop_tracebacks(error)
    except Exception:
        request.fail()
