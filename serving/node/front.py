"""A node alone, as clients see it over HTTP: predictions by exchanges, everything else by routes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from serving.conversation import Conversation
from serving.errors import (
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
    http_status,
    to_wire,
    wrong_method,
)
from serving.exchange import PREDICT
from serving.heads import TIMEOUT, TIMING, Head
from serving.node.app import Node
from serving.node.request import Request
from serving.protocols import PLAIN, Call, Dialect
from serving.protocols.calls import call_of
from serving.protocols.paths import Path, parse
from serving.wire import Headers, error_headers, too_large

_YES = b"1"
_VERTEX = Call(Dialect.VERTEX)


class _Exchanged(Request):
    """A request of a client."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Conversation, *, told: bool) -> None:
        super().__init__(told=told)
        self._exchange = exchange

    def answer(self, status: int, body: bytes, headers: Headers) -> None:
        self._exchange.answer(status, body, headers)


class Predictions:
    """Answers predictions of clients.

    `connections` tells how many are open: with one, no request can arrive while another is worked on.
    `route` is one more path that takes them, as Vertex AI's containers have it; "" for none.
    """

    def __init__(
        self,
        node: Node,
        *,
        max_body_bytes: int,
        timeout: float,
        connections: Callable[[], int],
        route: str = "",
    ) -> None:
        self._node = node
        self._route = route
        self._timeout = timeout
        self._connections = connections
        self.max_body_bytes = max_body_bytes

    def takes(self, method: str, path: str) -> bool:
        """Predictions of all protocols, and what is like AI Platform's."""
        known = path.endswith(PREDICT) or parse(path) is not None
        return known or (path == self._route and method == "POST")

    def begin(self, exchange: Conversation) -> None:
        """Refuse what can be refused without its body."""
        try:
            self._admit(exchange)
        except ServingError as error:
            exchange.refuse(error)

    def complete(self, exchange: Conversation) -> None:
        """Predict."""
        try:
            if len(exchange.body) > self.max_body_bytes:
                raise too_large(self.max_body_bytes)
            self._predict(exchange)
        except ServingError as error:
            exchange.refuse(error)

    def _admit(self, exchange: Conversation) -> None:
        head = exchange.head
        if head.known is None:
            head.known = _call(head, self._route)
        if head.method != "POST":
            raise wrong_method(head.method, head.path, "POST")
        if self._node.predictor is None:
            raise _loading()
        if head.length > self.max_body_bytes:
            raise too_large(self.max_body_bytes)

    def _predict(self, exchange: Conversation) -> None:
        predictor = self._node.predictor
        if predictor is None:
            raise _loading()
        head, heeded = exchange.head, exchange.head.told
        request = _Exchanged(exchange, told=heeded.get(TIMING) == _YES)
        timeout = self._timeout if TIMEOUT not in heeded else _seconds(heeded[TIMEOUT])
        predictor.predict(request, exchange.body, timeout, lone=self._connections() < 2, call=head.known)
        if not request.over:
            exchange.on_gone = lambda: predictor.give_up(request)
            predictor.start_soon()


def _call(head: Head, route: str) -> Call:
    """The call of a request; whatever version it asks for, this one answers."""
    asked = head.asked
    if asked is not None:
        return call_of(asked, head.told, asked.version)
    if head.path != route:
        raise _no_such_path(head.path)
    call = call_of(Path(Dialect.AI_PLATFORM, "predict", ""), head.told)
    return _VERTEX if call is PLAIN else call


def _seconds(given: bytes) -> float:
    try:
        wanted = float(given)
    except ValueError:
        wanted = -1
    if not wanted > 0:
        raise InvalidArgument("The header X-Request-Timeout must be a number of seconds over 0.")
    return wanted


# ---- everything else


def application(node: Node, health_route: str = "") -> Starlette:
    """The routes that are not predictions; the node lives from its start-up to its shutdown.

    `health_route` is one more path that answers 200 once the node is ready; "" for none.
    """

    @contextlib.asynccontextmanager
    async def living(_: Starlette) -> AsyncGenerator[None]:
        node.start()
        yield
        node.end()

    health = (Route(health_route, _ready),) if health_route else ()
    app = Starlette(
        routes=(*health, *_ROUTES),
        exception_handlers={404: _not_found, 405: _wrong_method},
        lifespan=living,
    )
    app.state.node = node
    return app


async def _live(_: HttpRequest) -> Response:
    return JSONResponse({"status": "live"})


async def _ready(request: HttpRequest) -> Response:
    if _node(request).predictor is None:
        return _answer(_loading())
    return JSONResponse({"status": "ready"})


async def _stats(request: HttpRequest) -> Response:
    return JSONResponse(_node(request).stats())


async def _status(request: HttpRequest) -> Response:
    """Model status in the shape TensorFlow Serving gives it."""
    state = "LOADING" if _node(request).predictor is None else "AVAILABLE"
    status = {"version": "1", "state": state, "status": {"error_code": "OK", "error_message": ""}}
    return JSONResponse({"model_version_status": [status]})


_ROUTES = (
    Route("/healthz", _live),
    Route("/readyz", _ready),
    Route("/stats", _stats),
    Route("/v1/models/{model}", _status),
    Route("/v1/models/{model}/versions/{version}", _status),
)


def _node(request: HttpRequest) -> Node:
    node: Node = request.app.state.node
    return node


def _loading() -> Unavailable:
    return Unavailable("The model is being loaded.", retry_after=1)


def _no_such_path(path: str) -> NotFound:
    return NotFound(
        f"Nothing is at {path}. A node answers POST /v1/projects/PROJECT/models/MODEL[/versions/VERSION]"
        ":predict, POST /v1/models/MODEL[/versions/VERSION]:predict, GET /healthz, /readyz and /stats."
    )


def _not_found(request: HttpRequest, _: Exception) -> Response:
    return _answer(_no_such_path(request.url.path))


def _wrong_method(request: HttpRequest, _: Exception) -> Response:
    return _answer(wrong_method(request.method, request.url.path, "GET"))


def _answer(error: ServingError) -> Response:
    told = {name.decode(): value.decode() for name, value in error_headers(error)}
    return JSONResponse(to_wire(error), status_code=http_status(error), headers=told)
