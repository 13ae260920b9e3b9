"""Predictions on a node: body -> instances -> servable -> predictions -> body.

AI Platform's JSON is decoded and encoded here, all other protocols by a `Codec`.

It works with callbacks: the caller passes a `NodeRequest`, whose `respond` is called with the answer, maybe
before `predict` returns. For AI Platform's JSON there is no task and no future per request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from serving.config import PredictSettings
from serving.errors import Internal, ModelError, ModelFailed, ServingError
from serving.http_headers import Headers, answer_too_large
from serving.latency_histograms import LatencyHistograms
from serving.model_schema import ModelSchema
from serving.node.batcher import BatchLimits
from serving.node.codecs import Codec, CodecCache, ServedModel
from serving.node.compute import AdaptiveExecutor, BatchedRuntime
from serving.node.request import NodeRequest
from serving.node.request_marks import CallMark, RequestMarks, record_timing, server_timing_header
from serving.protocols import DEFAULT_METADATA, Reply, RequestMetadata
from serving.protocols.errors import render_error
from serving.runtimes import Runtime
from serving.runtimes.instance_batch import Batch, split_batch
from serving.runtimes.json_codec import AnswerStyle, InstancesDecoder, encode_bodies, encode_predictions
from serving.runtimes.schema_inference import unknown_schema

logger = logging.getLogger(__name__)


class NodePredictor:
    """Answers prediction requests with a runtime, and keeps their marks.

    `schema` is the model's, as far as known; AI Platform's JSON needs none. `histograms` counts the phases of
    answered requests, `call_mark` is set during each call of the runtime.
    """

    def __init__(
        self,
        runtime: Runtime,
        executor: AdaptiveExecutor,
        limits: BatchLimits,
        settings: PredictSettings,
        *,
        marks: RequestMarks,
        schema: ModelSchema | None = None,
        histograms: LatencyHistograms | None = None,
        call_mark: CallMark | None = None,
    ) -> None:
        self._servable = BatchedRuntime(
            runtime, executor, limits, marks, self._respond_safely, call_mark=call_mark
        )
        self._input_format = runtime.input_format
        self._timeout = settings.request_timeout
        self._max_answer_bytes = settings.max_answer_bytes
        self._legacy_model_errors = settings.legacy_model_errors
        self._histograms = histograms
        self._decoder = InstancesDecoder(settings.max_json_depth)
        self._answer_style = style = AnswerStyle(settings.single_output == "bare", settings.long_decimals)
        known = schema or unknown_schema(runtime.framework.platform)
        self.get_codec = CodecCache(
            ServedModel(runtime, known, self._decoder, settings.max_json_depth, style)
        ).get_or_create
        self.start_now = self._servable.start_now
        self.set_max_batch_rows = self._servable.set_max_batch_rows
        self.start_soon = self._servable.start_soon
        self.requests = 0
        self.errors = 0

    def predict(
        self,
        request: NodeRequest,
        body: bytes | bytearray,
        timeout: float,
        *,
        idle_fast_path: bool,
        call: RequestMetadata = DEFAULT_METADATA,
    ) -> None:
        """Answer a request within `timeout` seconds, if only with an error.

        With `idle_fast_path`, for when no other request is about to arrive, an idle servable computes it at
        once. Else it is queued, and `start_now` or `start_soon` must follow.
        """
        self.requests += 1
        request.received_at = now = time.monotonic()
        request.deadline = now + min(timeout, self._timeout)
        request.body_size = len(body)
        try:
            if call is DEFAULT_METADATA:
                request.set_inputs(*self._decoder.decode(body, self._input_format))
            else:
                request.decode_body(self.get_codec(call), body)
            request.parsed_at = time.monotonic()
            if not (idle_fast_path and self._servable.can_predict_now):
                self._servable.submit(request)
                return
            self._respond_to_group((request,), self._servable.predict_now(request))
        except Exception as error:
            self._send_error(request, error)

    def cancel_request(self, request: NodeRequest) -> None:
        """Drop a request whose client is gone, unless it is being computed."""
        if not request.is_finished:
            request.is_finished = True
            self.errors += 1

    def collect_stats(self) -> dict[str, Any]:
        return {"requests": self.requests, "errors": self.errors, **self._servable.collect_stats()}

    # ---- answers

    def _respond_safely(self, group: Sequence[NodeRequest], outcome: Batch | Exception) -> None:
        """Answer requests that were computed together; `outcome` has the predictions of all in one batch.

        Raises nothing; a failure of one request affects no other.
        """
        try:
            self._respond_to_group(group, outcome)
        except Exception as error:
            for request in group:
                self._send_error(request, error)

    def _respond_to_group(self, group: Sequence[NodeRequest], outcome: Batch | Exception) -> None:
        if isinstance(outcome, Exception):
            for request in group:
                self._send_error(request, outcome)
            return
        predicted = time.monotonic()
        for request in group:
            if request.codec is not None:
                self._respond_with_codecs(group, outcome, predicted)
                return
        try:
            bodies = _encode_bodies(group, outcome, self._answer_style)
        except Exception as error:
            self._respond_one_by_one(group, outcome, error)
            return
        encoded, max_bytes = time.monotonic(), self._max_answer_bytes
        for request, body in zip(group, bodies, strict=True):
            if len(body) > max_bytes:
                self._send_error(request, answer_too_large(len(body), max_bytes))
            elif request.wants_timing:
                self._send_response(request, 200, body, server_timing_header(request, predicted, encoded))
            elif not request.is_finished:  # as `_send_response` does, without the call
                request.is_finished = True
                try:
                    request.respond(200, body, ())
                except Exception:
                    self._handle_failed_send(request)
        if self._histograms is not None:
            record_timing(self._histograms, group, predicted, encoded)

    def _respond_one_by_one(self, group: Sequence[NodeRequest], predictions: Batch, error: Exception) -> None:
        """Answer requests one by one, since some of their predictions cannot be encoded."""
        if len(group) == 1:
            self._send_error(group[0], error)
            return
        for request, own in _split_predictions(group, predictions):
            self._respond_safely((request,), own)

    def _respond_with_codecs(
        self, group: Sequence[NodeRequest], predictions: Batch, predicted: float
    ) -> None:
        """Answer requests of which some have codecs, one by one."""
        written: list[tuple[NodeRequest, Reply]] = []
        for request, own in _split_predictions(group, predictions):
            try:
                written.append((request, _encode_response(request, own, self._answer_style)))
            except Exception as error:
                self._send_error(request, error)
        encoded = time.monotonic()
        for request, (status, body, headers) in written:
            if len(body) > self._max_answer_bytes:
                self._send_error(request, answer_too_large(len(body), self._max_answer_bytes))
            else:
                more = server_timing_header(request, predicted, encoded) if request.wants_timing else ()
                self._send_response(request, status, body, (*headers, *more))
        if self._histograms is not None and written:
            record_timing(self._histograms, [request for request, _ in written], predicted, encoded)

    def _send_response(self, request: NodeRequest, status: int, body: bytes, headers: Headers) -> None:
        """Send an answer, or an error in place of one that cannot be sent."""
        if request.is_finished:
            return
        request.is_finished = True
        try:
            request.respond(status, body, headers)
        except Exception:
            self._handle_failed_send(request)

    def _handle_failed_send(self, request: NodeRequest) -> None:
        logger.exception("an answer could not be sent")
        self.errors += 1
        self._send_internal_error(request)

    def _send_error(self, request: NodeRequest, error: Exception) -> None:
        """Answer with an error. Raises nothing, whatever the error is made of."""
        if request.is_finished:
            return
        request.is_finished = True
        self.errors += 1
        try:
            if not isinstance(error, ServingError):
                logger.error("prediction failed", exc_info=error)
                error = ModelFailed(f"{type(error).__name__}: {error}")
            request.respond(*self._encode_error(request.codec, error))
        except Exception:
            logger.exception("an error response could not be sent")
            self._send_internal_error(request)

    def _send_internal_error(self, request: NodeRequest) -> None:
        """Answer with an error that can always be encoded."""
        try:
            request.respond(*self._encode_error(request.codec, Internal("Internal error encountered.")))
        except Exception:
            logger.exception("a request could not be answered")

    def _encode_error(self, codec: Codec | None, error: ServingError) -> Reply:
        if codec is not None:
            return codec.encode_error(error)
        if self._legacy_model_errors and isinstance(error, ModelError):
            return Reply(200, orjson.dumps({"error": error.message}))
        return render_error(error)


def _encode_bodies(group: Sequence[NodeRequest], predictions: Batch, style: AnswerStyle) -> Sequence[bytes]:
    """The bodies of the answers to requests without codecs that were computed together."""
    if len(group) == 1:
        return (encode_predictions(predictions, style),)
    return encode_bodies(predictions, [request.rows for request in group], style)


def _encode_response(request: NodeRequest, predictions: Batch, style: AnswerStyle) -> Reply:
    if request.codec is None:
        return Reply(200, encode_predictions(predictions, style))
    return request.codec.encode_response(request.decoded, predictions)


def _split_predictions(
    group: Sequence[NodeRequest], predictions: Batch
) -> Iterable[tuple[NodeRequest, Batch]]:
    """Requests that were computed together, with the predictions of each."""
    if len(group) == 1:
        return ((group[0], predictions),)
    return zip(group, split_batch(predictions, [request.rows for request in group]), strict=True)
