"""Predictions of a node alone, which clients ask for themselves; for everything else it has routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from serving.content_encoding import check_encoding
from serving.conversation import PredictionRequest
from serving.errors import InvalidArgument, ServingError
from serving.exchange import PREDICT_SUFFIX
from serving.heads import TIMEOUT, WANTS_TIMING_HEADER, RequestHead
from serving.node.predict import Predictor
from serving.node.request import Request
from serving.node.routes import VERSION, loading, nothing_there
from serving.protocols import PLAIN, Call, Dialect
from serving.protocols.addresses import shown
from serving.protocols.calls import call_of
from serving.protocols.paths import Path, no_such_method, parse
from serving.wire import Headers, body_too_large

_YES = b"1"
_VERTEX = Call(Dialect.VERTEX)


class _Exchanged(Request):
    """A request of a client."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: PredictionRequest, *, told: bool) -> None:
        Request.__init__(self, told=told)  # cheaper than super()
        self._exchange = exchange

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self._exchange.respond(status, body, headers)


class Loaded(Protocol):
    """What has a predictor, None while the model is being loaded."""

    @property
    def predictor(self) -> Predictor | None:
        """What answers."""


class Predictions:
    """Answers predictions of clients.

    `connections` tells how many are open: with one, no request can arrive while another is worked on.
    `route` is one more path that takes them, as Vertex AI's containers have it; "" for none.
    """

    def __init__(
        self,
        node: Loaded,
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

    def can_handle(self, method: str, path: str) -> bool:
        """Predictions of all protocols, and what is like AI Platform's."""
        known = path.endswith(PREDICT_SUFFIX) or parse(path) is not None
        return known or (path == self._route and method == "POST")

    def on_request_error(self, exchange: PredictionRequest, error: ServingError) -> None:
        """Answer with an error."""
        exchange.respond_error(error)

    def on_request_head(self, exchange: PredictionRequest) -> None:
        """Refuse what can be refused without its body."""
        try:
            self._admit(exchange)
        except ServingError as error:
            exchange.respond_error(error)

    def on_request_complete(self, exchange: PredictionRequest) -> None:
        """Predict."""
        try:
            if len(exchange.body) > self.max_body_bytes:
                raise body_too_large(self.max_body_bytes)
            self._predict(exchange)
        except ServingError as error:
            exchange.respond_error(error)

    def _admit(self, exchange: PredictionRequest) -> None:
        head = exchange.head
        if head.handler_cache is None:
            head.handler_cache = _call(head, self._route)
        if head.method != "POST" or head.method_override:
            raise no_such_method(head.effective_method, head.path, "POST")
        if self._node.predictor is None:
            raise loading()
        if head.encoding:
            check_encoding(head.encoding)
        if head.length > self.max_body_bytes:
            raise body_too_large(self.max_body_bytes)

    def _predict(self, exchange: PredictionRequest) -> None:
        predictor = self._node.predictor
        if predictor is None:
            raise loading()
        head, heeded = exchange.head, exchange.head.prediction_headers
        request = _Exchanged(exchange, told=heeded.get(WANTS_TIMING_HEADER) == _YES)
        timeout = self._timeout if TIMEOUT not in heeded else _seconds(heeded[TIMEOUT])
        predictor.predict(
            request, exchange.body, timeout, lone=self._connections() < 2, call=head.handler_cache
        )
        if not request.over:
            exchange.on_disconnect = lambda: predictor.give_up(request)
            predictor.start_soon()


def _call(head: RequestHead, route: str) -> Call:
    """The call of a request; whatever version it asks for, this one answers."""
    asked = head.prediction_path
    if asked is not None:
        return call_of(asked, head.prediction_headers, shown(asked.version or VERSION))
    if head.path != route:
        raise nothing_there(head.method, head.path)
    call = call_of(Path(Dialect.AI_PLATFORM, "predict", ""), head.prediction_headers)
    return _VERTEX if call is PLAIN else call


def _seconds(given: bytes) -> float:
    try:
        wanted = float(given)
    except ValueError:
        wanted = -1
    if not wanted > 0:
        raise InvalidArgument("The header X-Request-Timeout must be a number of seconds over 0.")
    return wanted
