"""Predictions of a node alone, which clients ask for themselves; for everything else it has routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from serving.content_encoding import check_encoding
from serving.conversation import Conversation
from serving.errors import InvalidArgument, ServingError
from serving.exchange import PREDICT
from serving.heads import TIMEOUT, TIMING, Head
from serving.node.predict import Predictor
from serving.node.request import Request
from serving.node.routes import VERSION, loading, nothing_there
from serving.protocols import PLAIN, Call, Dialect
from serving.protocols.addresses import shown
from serving.protocols.calls import call_of
from serving.protocols.paths import Path, no_such_method, parse
from serving.wire import Headers, too_large

_YES = b"1"
_VERTEX = Call(Dialect.VERTEX)


class _Exchanged(Request):
    """A request of a client."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Conversation, *, told: bool) -> None:
        Request.__init__(self, told=told)  # cheaper than super()
        self._exchange = exchange

    def answer(self, status: int, body: bytes, headers: Headers) -> None:
        self._exchange.answer(status, body, headers)


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

    def takes(self, method: str, path: str) -> bool:
        """Predictions of all protocols, and what is like AI Platform's."""
        known = path.endswith(PREDICT) or parse(path) is not None
        return known or (path == self._route and method == "POST")

    def refuse(self, exchange: Conversation, error: ServingError) -> None:
        """Answer with an error."""
        exchange.refuse(error)

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
        if head.method != "POST" or head.override:
            raise no_such_method(head.wanted_method, head.path, "POST")
        if self._node.predictor is None:
            raise loading()
        if head.encoding:
            check_encoding(head.encoding)
        if head.length > self.max_body_bytes:
            raise too_large(self.max_body_bytes)

    def _predict(self, exchange: Conversation) -> None:
        predictor = self._node.predictor
        if predictor is None:
            raise loading()
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
        return call_of(asked, head.told, shown(asked.version or VERSION))
    if head.path != route:
        raise nothing_there(head.method, head.path)
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
