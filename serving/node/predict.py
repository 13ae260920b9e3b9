"""`:predict` on a node, the straight line: body -> instances -> servable -> predictions -> body."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

import orjson

from serving.config import PredictSettings
from serving.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    ModelError,
    ModelFailed,
    ServingError,
)
from serving.node.servable import Servable
from serving.node.watch import UNWATCHED, Board, Timing, Watch, marks
from serving.phases import Histograms
from serving.runtimes.codec import Decoder, encode
from serving.runtimes.instances import Batch
from serving.wire import Receive, Scope, Send, headers, read_body, send_error, send_json

logger = logging.getLogger(__name__)

# Headers that a node heeds: the seconds a request may take, its slot on the board, whether its call is to be
# its own, and whether the answer shall tell how long things took.
_TIMEOUT = b"x-request-timeout"
_SLOT = b"x-pilotlight-slot"
_ALONE = b"x-pilotlight-alone"
_TIMING = b"x-pilotlight-timing"
_HEEDED = frozenset({_TIMEOUT, _SLOT, _ALONE, _TIMING})
_YES = b"1"


class Predictor:
    """Answers prediction requests with a servable, and marks on the board what the model is doing.

    `histograms` counts how long the phases of answered requests took.
    """

    def __init__(
        self,
        servable: Servable,
        settings: PredictSettings,
        board: Board,
        histograms: Histograms | None = None,
    ) -> None:
        self._servable = servable
        self._settings = settings
        self._marks = marks(board)
        self._histograms = histograms
        self._decoder = Decoder(settings.max_json_depth)
        self.requests = 0
        self.errors = 0

    async def answer(self, scope: Scope, receive: Receive, send: Send, *, bare: bool = False) -> None:
        """Answer one request; `bare` drops the name of a single output, as TensorFlow Serving does."""
        self.requests += 1
        try:
            body = await read_body(scope, receive, self._settings.max_body_bytes)
            heeded = headers(scope, _HEEDED)
            watch = self._watch(heeded)
            predictions = await self._predict(body, heeded, watch, receive)
            watch.predicted()
            answer = encode(_bare(predictions) if bare else predictions)
            watch.encoded()
            await send_json(send, 200, answer, watch.headers())
        except Cancelled:
            self.errors += 1
        except ServingError as error:
            self.errors += 1
            await self._refuse(send, error)
        except Exception as error:
            self.errors += 1
            logger.exception("prediction failed")
            await self._refuse(send, ModelFailed(f"{type(error).__name__}: {error}"))

    async def _predict(
        self, body: bytes, heeded: Mapping[bytes, bytes], watch: Watch, receive: Receive
    ) -> Batch:
        deadline = self._deadline(heeded.get(_TIMEOUT))
        instances, parameters = self._decoder.decode(body, self._servable.form)
        watch.parsed()
        if self._servable.idle:
            return self._servable.predict_now(instances, parameters, watch)
        alone = heeded.get(_ALONE) == _YES
        answer = self._servable.predict(instances, parameters, deadline, len(body), watch, alone=alone)
        if not self._servable.prompt:
            await _wait(answer, deadline, receive)
        return await answer

    def _watch(self, heeded: Mapping[bytes, bytes]) -> Watch:
        # What is no slot of the board marks nothing.
        mark = self._marks.get(heeded.get(_SLOT, b""), UNWATCHED)
        told = heeded.get(_TIMING) == _YES
        return Timing(mark, self._histograms, told=told) if told or self._histograms is not None else mark

    def _deadline(self, given: bytes | None) -> float:
        timeout = self._settings.request_timeout
        if given is not None:
            try:
                wanted = float(given)
            except ValueError:
                wanted = -1
            if not wanted > 0:
                raise InvalidArgument("The header X-Request-Timeout must be a number of seconds over 0.")
            timeout = min(timeout, wanted)
        return time.monotonic() + timeout

    async def _refuse(self, send: Send, error: ServingError) -> None:
        if self._settings.legacy_model_errors and isinstance(error, ModelError):
            await send_json(send, 200, orjson.dumps({"error": error.message}))
        else:
            await send_error(send, error)


async def _wait(answer: asyncio.Future[Batch], deadline: float, receive: Receive) -> None:
    """Wait for an answer that takes its time; give up when the client is gone or the time is out."""
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait(
            (answer, gone), timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED
        )
        if answer.done():
            return
        answer.cancel()
        if gone.done():
            raise Cancelled("The client closed the connection.")
        raise DeadlineExceeded("The model did not answer within the request's time.")
    finally:
        gone.cancel()


def _bare(predictions: Batch) -> Batch:
    if isinstance(predictions, dict) and len(predictions) == 1:
        name, column = next(iter(predictions.items()))
        return predictions if column.dtype.kind in "OS" and name.endswith("_bytes") else column
    return predictions
