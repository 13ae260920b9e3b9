"""Predictions of a standalone node, for HTTP and gRPC; all other requests go to its routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from serving.errors import ServingError
from serving.http_headers import TIMEOUT, WANTS_TIMING_HEADER, Headers, body_too_large, parse_timeout
from serving.node.predict import NodePredictor
from serving.node.request import NodeRequest
from serving.node.standalone.routes import DEFAULT_VERSION, model_loading_error, unknown_path_error
from serving.protocols import DEFAULT_METADATA, Dialect, RequestMetadata
from serving.protocols.addresses import to_protocol_version
from serving.protocols.paths import PredictionPath, parse_prediction_path, wrong_method_error
from serving.protocols.request_metadata import parse_request_metadata
from serving.transport.content_encoding import check_encoding
from serving.transport.request import PREDICT_SUFFIX, PredictionRequest
from serving.transport.request_head import RequestHead

_TRUE = b"1"
_VERTEX = RequestMetadata(Dialect.VERTEX)


class _DirectNodeRequest(NodeRequest):
    __slots__ = ("_exchange",)

    def __init__(self, exchange: PredictionRequest, *, wants_timing: bool) -> None:
        NodeRequest.__init__(self, wants_timing=wants_timing)  # cheaper than super()
        self._exchange = exchange

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self._exchange.respond(status, body, headers)


class PredictorProvider(Protocol):
    """Has a predictor; None while the model is being loaded."""

    @property
    def predictor(self) -> NodePredictor | None:
        """The predictor, once the model is loaded."""


class StandalonePredictionHandler:
    """Answers predictions of clients.

    `connections` returns how many are open: with one, no request can arrive while another is computed.
    `route` is one more path for predictions, as in Vertex AI's containers; "" for none.
    """

    def __init__(
        self,
        node: PredictorProvider,
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
        known = path.endswith(PREDICT_SUFFIX) or parse_prediction_path(path) is not None
        return known or (path == self._route and method == "POST")

    def on_request_error(self, exchange: PredictionRequest, error: ServingError) -> None:
        exchange.respond_error(error)

    def on_request_head(self, exchange: PredictionRequest) -> None:
        """Answer with an error where the body is not needed for that."""
        try:
            self._check_head(exchange)
        except ServingError as error:
            exchange.respond_error(error)

    def on_request_complete(self, exchange: PredictionRequest) -> None:
        try:
            if len(exchange.body) > self.max_body_bytes:
                raise body_too_large(self.max_body_bytes)
            self._start_prediction(exchange)
        except ServingError as error:
            exchange.respond_error(error)

    def _check_head(self, exchange: PredictionRequest) -> None:
        head = exchange.head
        if head.handler_cache is None:
            head.handler_cache = _resolve_call(head, self._route)
        if head.method != "POST" or head.method_override:
            raise wrong_method_error(head.effective_method, head.path, "POST")
        if self._node.predictor is None:
            raise model_loading_error()
        if head.encoding:
            check_encoding(head.encoding)
        if head.length > self.max_body_bytes:
            raise body_too_large(self.max_body_bytes)

    def _start_prediction(self, exchange: PredictionRequest) -> None:
        predictor = self._node.predictor
        if predictor is None:
            raise model_loading_error()
        head, prediction_headers = exchange.head, exchange.head.prediction_headers
        request = _DirectNodeRequest(
            exchange, wants_timing=prediction_headers.get(WANTS_TIMING_HEADER) == _TRUE
        )
        given = prediction_headers.get(TIMEOUT)
        timeout = self._timeout if given is None else parse_timeout(given)
        predictor.predict(
            request, exchange.body, timeout, idle_fast_path=self._connections() < 2, call=head.handler_cache
        )
        if not request.is_finished:
            exchange.on_disconnect = lambda: predictor.cancel_request(request)
            predictor.start_soon()


def _resolve_call(head: RequestHead, route: str) -> RequestMetadata:
    """The call of a request, which may name any version."""
    path = head.prediction_path
    if path is not None:
        return parse_request_metadata(
            path, head.prediction_headers, to_protocol_version(path.version or DEFAULT_VERSION)
        )
    if head.path != route:
        raise unknown_path_error(head.method, head.path)
    call = parse_request_metadata(PredictionPath(Dialect.AI_PLATFORM, "predict", ""), head.prediction_headers)
    return _VERTEX if call is DEFAULT_METADATA else call
