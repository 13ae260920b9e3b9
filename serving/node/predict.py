"""`:predict` on a node, the straight line: body -> instances -> servable -> predictions -> body."""

from __future__ import annotations

import asyncio
import logging
import time

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
from serving.runtimes.codec import Decoder, encode
from serving.runtimes.instances import Batch
from serving.wire import Receive, Scope, Send, header, read_body, send_error, send_json

logger = logging.getLogger(__name__)

TIMEOUT_HEADER = b"x-request-timeout"


class Predictor:
    """Answers prediction requests with a servable."""

    def __init__(self, servable: Servable, settings: PredictSettings) -> None:
        self._servable = servable
        self._settings = settings
        self._decoder = Decoder()
        self.requests = 0
        self.errors = 0

    async def answer(self, scope: Scope, receive: Receive, send: Send, *, bare: bool = False) -> None:
        """Answer one request; `bare` drops the name of a single output, as TensorFlow Serving does."""
        self.requests += 1
        try:
            body = await read_body(receive, self._settings.max_body_bytes)
            predictions = await self._predict(body, self._deadline(scope), receive)
            await send_json(send, 200, encode(_bare(predictions) if bare else predictions))
        except Cancelled:
            self.errors += 1
        except ServingError as error:
            self.errors += 1
            await self._refuse(send, error)
        except Exception as error:
            self.errors += 1
            logger.exception("prediction failed")
            await self._refuse(send, ModelFailed(f"{type(error).__name__}: {error}"))

    async def _predict(self, body: bytes, deadline: float, receive: Receive) -> Batch:
        instances, parameters = self._decoder.decode(body, self._servable.form)
        if self._servable.idle:
            return self._servable.predict_now(instances, parameters)
        answer = self._servable.predict(instances, parameters, deadline, len(body))
        if not self._servable.prompt:
            await _wait(answer, deadline, receive)
        return await answer

    def _deadline(self, scope: Scope) -> float:
        timeout = self._settings.request_timeout
        given = header(scope, TIMEOUT_HEADER)
        if given is not None:
            try:
                timeout = min(timeout, float(given))
            except ValueError:
                raise InvalidArgument("The header X-Request-Timeout must be a number of seconds.") from None
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
