"""Predictions on a node, the straight line: body -> instances -> servable -> predictions -> body.

Ordinary JSON is read and written here; what speaks another way has a `Reader` for that.

It works in calls: who asks hands over a `Request`, whose `answer` is called when there is one, maybe before
`predict` returns. On the ordinary way there is no task and no future per request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from serving.config import PredictSettings
from serving.errors import Internal, ModelError, ModelFailed, ServingError
from serving.node.batcher import Bounds
from serving.node.dialects import Model, Reader
from serving.node.dialects.readers import Readers
from serving.node.request import Request
from serving.node.servable import MeasuredPlace, Servable
from serving.node.watch import Board, CallMark, note, told
from serving.phases import LatencyHistograms
from serving.protocols import PLAIN, Call, Reply
from serving.protocols.errors import refusal
from serving.runtimes import Runtime
from serving.runtimes.codec import AnswerStyle, InstancesDecoder, encode_bodies, encode_predictions
from serving.runtimes.describing import unknown_schema
from serving.runtimes.instances import Batch, split_batch
from serving.schema import ModelSchema
from serving.wire import Headers, answer_too_large

logger = logging.getLogger(__name__)


class Predictor:
    """Answers prediction requests with a runtime, and marks on the board what the model is doing.

    `schema` is what is known of the model's inputs and outputs; ordinary JSON does without it. `histograms`
    counts how long the phases of answered requests took, `call_mark` tells of each call of the runtime.
    """

    def __init__(
        self,
        runtime: Runtime,
        place: MeasuredPlace,
        bounds: Bounds,
        settings: PredictSettings,
        *,
        marks: Board,
        schema: ModelSchema | None = None,
        histograms: LatencyHistograms | None = None,
        call_mark: CallMark | None = None,
    ) -> None:
        self._servable = Servable(runtime, place, bounds, marks, self._answer, call_mark=call_mark)
        self._form = runtime.input_format
        self._timeout = settings.request_timeout
        self._max_answer = settings.max_answer_bytes
        self._legacy = settings.legacy_model_errors
        self._histograms = histograms
        self._decoder = InstancesDecoder(settings.max_json_depth)
        self._style = style = AnswerStyle(settings.single_output == "bare", settings.long_decimals)
        known = schema or unknown_schema(runtime.framework.lower())
        self.reader = Readers(Model(runtime, known, self._decoder, settings.max_json_depth, style)).of
        self.start = self._servable.start
        self.merge_up_to = self._servable.merge_up_to
        self.start_soon = self._servable.start_soon
        self.requests = 0
        self.errors = 0

    def predict(
        self,
        request: Request,
        body: bytes | bytearray,
        timeout: float,
        *,
        lone: bool,
        call: Call = PLAIN,
    ) -> None:
        """Answer a request that has `timeout` seconds, in time or with an error.

        A `lone` one, with no other on its way, is computed now if that is possible. Else it is queued, and
        `start` or `start_soon` is to follow.
        """
        self.requests += 1
        request.began = began = time.monotonic()
        request.deadline = began + min(timeout, self._timeout)
        request.size = len(body)
        try:
            if call is PLAIN:
                request.fill(*self._decoder.decode(body, self._form))
            else:
                request.read(self.reader(call), body)
            request.parsed = time.monotonic()
            if not (lone and self._servable.is_idle):
                self._servable.submit(request)
                return
            self._answer_group((request,), self._servable.predict_now(request))
        except Exception as error:
            self._refuse(request, error)

    def give_up(self, request: Request) -> None:
        """Nobody waits for the answer any more: the work is dropped if it has not begun."""
        if not request.over:
            request.over = True
            self.errors += 1

    def stats(self) -> dict[str, Any]:
        """Counts since the start, for people and dashboards."""
        return {"requests": self.requests, "errors": self.errors, **self._servable.stats()}

    # ---- answers

    def _answer(self, group: Sequence[Request], outcome: Batch | Exception) -> None:
        """Answer requests that were computed together; `outcome` has the predictions of all in one piece.

        Raises nothing, and what keeps one request from its answer concerns no other.
        """
        try:
            self._answer_group(group, outcome)
        except Exception as error:
            for request in group:
                self._refuse(request, error)

    def _answer_group(self, group: Sequence[Request], outcome: Batch | Exception) -> None:
        if isinstance(outcome, Exception):
            for request in group:
                self._refuse(request, outcome)
            return
        predicted = time.monotonic()
        for request in group:
            if request.reader is not None:
                self._write(group, outcome, predicted)
                return
        try:
            bodies = _bodies(group, outcome, self._style)
        except Exception as error:
            self._answer_each(group, outcome, error)
            return
        encoded = time.monotonic()
        for request, body in zip(group, bodies, strict=True):
            if len(body) > self._max_answer:
                self._refuse(request, answer_too_large(len(body), self._max_answer))
            else:
                self._give(request, 200, body, told(request, predicted, encoded) if request.told else ())
        if self._histograms is not None:
            note(self._histograms, group, predicted, encoded)

    def _answer_each(self, group: Sequence[Request], predictions: Batch, error: Exception) -> None:
        """Answer requests one by one, since some of their predictions cannot be written."""
        if len(group) == 1:
            self._refuse(group[0], error)
            return
        for request, own in _shared(group, predictions):
            self._answer((request,), own)

    def _write(self, group: Sequence[Request], predictions: Batch, predicted: float) -> None:
        """Answer requests of which some have readers, each on its own."""
        written: list[tuple[Request, Reply]] = []
        for request, own in _shared(group, predictions):
            try:
                written.append((request, _reply(request, own, self._style)))
            except Exception as error:
                self._refuse(request, error)
        encoded = time.monotonic()
        for request, (status, body, headers) in written:
            if len(body) > self._max_answer:
                self._refuse(request, answer_too_large(len(body), self._max_answer))
            else:
                more = told(request, predicted, encoded) if request.told else ()
                self._give(request, status, body, (*headers, *more))
        if self._histograms is not None and written:
            note(self._histograms, [request for request, _ in written], predicted, encoded)

    def _give(self, request: Request, status: int, body: bytes, headers: Headers) -> None:
        """Hand over an answer, or an error in place of one that cannot be sent."""
        if request.over:
            return
        request.over = True
        try:
            request.respond(status, body, headers)
        except Exception:
            logger.exception("an answer could not be sent")
            self.errors += 1
            self._fail(request)

    def _refuse(self, request: Request, error: Exception) -> None:
        """Answer with an error. Raises nothing, whatever the error is made of."""
        if request.over:
            return
        request.over = True
        self.errors += 1
        try:
            if not isinstance(error, ServingError):
                logger.error("prediction failed", exc_info=error)
                error = ModelFailed(f"{type(error).__name__}: {error}")
            request.respond(*self._refusal(request.reader, error))
        except Exception:
            logger.exception("an error could not be told")
            self._fail(request)

    def _fail(self, request: Request) -> None:
        """Answer with what can always be written."""
        try:
            request.respond(*self._refusal(request.reader, Internal("Internal error encountered.")))
        except Exception:
            logger.exception("a request could not be answered")

    def _refusal(self, reader: Reader | None, error: ServingError) -> Reply:
        if reader is not None:
            return reader.refuse(error)
        if self._legacy and isinstance(error, ModelError):
            return Reply(200, orjson.dumps({"error": error.message}))
        return refusal(error)


def _bodies(group: Sequence[Request], predictions: Batch, style: AnswerStyle) -> Sequence[bytes]:
    """The bodies of the answers to ordinary requests that were computed together."""
    if len(group) == 1:
        return (encode_predictions(predictions, style),)
    return encode_bodies(predictions, [request.rows for request in group], style)


def _reply(request: Request, predictions: Batch, style: AnswerStyle) -> Reply:
    """The answer to one request, however it asked."""
    if request.reader is None:
        return Reply(200, encode_predictions(predictions, style))
    return request.reader.write(request.asked, predictions)


def _shared(group: Sequence[Request], predictions: Batch) -> Iterable[tuple[Request, Batch]]:
    """Requests that were computed together, with the predictions of each."""
    if len(group) == 1:
        return ((group[0], predictions),)
    return zip(group, split_batch(predictions, [request.rows for request in group]), strict=True)
