"""Models that their owner's container serves: JSON over HTTP.

The node is as for every other model; in place of a library it has a container, which an engine's command
runs (`serving.container_engine`). Nothing is assumed of it: no batching, and no synthetic requests.
"""

from __future__ import annotations

import base64
import http.client
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from serving.container_engine import SETTING
from serving.errors import InvalidInputs, InvalidOutputs, LoadFailed, ModelFailed, Unavailable
from serving.frameworks import find_user_code_framework
from serving.http_headers import answer_too_large
from serving.model_schema import DEFAULT_SIGNATURE, ModelSchema, ModelSignature
from serving.runtimes import LoadSpec, ModelContainer, RowsFormat
from serving.runtimes.container.connection_pool import ConnectionPool
from serving.runtimes.container.running_container import RunningContainer
from serving.runtimes.instance_batch import Batch
from serving.runtimes.schema_inference import (
    INSTANCES,
    find_answered_example,
    infer_output,
    infer_tensor,
    untyped_tensor,
)

_MAX_SHOWN = 1000
# Seconds for a container that has closed its connection to exit.
_END_SECONDS = 2.0
_REFUSED, _BUSY, _FAILED = 400, frozenset({429, 503}), 500


class ContainerRuntime:
    """A model in a container. Several threads may use it."""

    # User code, of which nothing is known.
    framework = find_user_code_framework()
    mergeable = False
    exact = True
    warnings: tuple[str, ...] = ()

    def __init__(self, running: RunningContainer) -> None:
        self._running = running
        self._connections = ConnectionPool(running.connect)

    def input_format(self, parameters: Mapping[str, Any]) -> RowsFormat:
        """Plain values: they are passed on as they are, with all other fields of the request."""
        return RowsFormat()

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        """What the container answers.

        Raises InvalidInputs and ModelFailed with its own words, Unavailable while it is not healthy.
        """
        if not self._running.is_healthy:
            raise Unavailable("The container is not healthy: its health checks fail.")
        body = orjson.dumps(
            {INSTANCES: instances, **parameters}, option=orjson.OPT_SERIALIZE_NUMPY, default=_to_json
        )
        status, answer = self._post_instances(body)
        if status >= _REFUSED:
            raise _error_for_status(status, answer)
        try:
            found = orjson.loads(answer)
            predictions = found["predictions"]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidOutputs(
                f'The container must answer {{"predictions": [...]}}; it answered: {_shorten_text(answer)}'
            ) from error
        if not isinstance(predictions, list):
            raise InvalidOutputs('"predictions" in the answer of the container must be a list.')
        return predictions

    def close(self) -> None:
        self._connections.close()
        self._running.close()

    def make_synthetic_rows(self, count: int) -> None:
        """None: only the container knows what its instances look like."""

    def warmup_requests(self) -> tuple[()]:
        """None: a container says that it is ready by its health."""
        return ()

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        """No more than the first of the examples that it answers tells."""
        shown = find_answered_example(self, examples)
        inputs = untyped_tensor(INSTANCES) if shown is None else infer_tensor(INSTANCES, [shown.instance])
        return ModelSchema(
            self.framework.platform,
            {DEFAULT_SIGNATURE: ModelSignature((inputs,), (infer_output(shown),))},
            strict=False,
            example=shown and shown.instance,
            answer=shown and shown.answer,
        )

    def _post_instances(self, body: bytes) -> tuple[int, bytes]:
        """The status and the body of its answer. Raises ModelFailed or Internal."""
        try:
            with self._connections.lease() as connection:
                connection.request(
                    "POST", self._running.container.predict, body, {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                return response.status, _read_body(response, self._running.container.max_answer_bytes)
        except (OSError, http.client.HTTPException) as error:
            # If it has exited, this process ends too, and its parent sees why.
            self._running.wait_for_exit(_END_SECONDS)
            reason = str(error) or type(error).__name__
            raise ModelFailed(f"The container did not answer: {reason}.") from error


def load(contained: ModelContainer, source: LoadSpec) -> ContainerRuntime:
    """Start the container and wait until it is healthy. Raises LoadFailed."""
    container = contained.container
    if not container.engine:
        raise LoadFailed(f"The version has a container, and the setting {SETTING} names nothing to run it.")
    running = RunningContainer(container, source.model_dir, contained.on_start)
    running.start_monitoring(shared_fate=contained.shared_fate)
    return ContainerRuntime(running)


def _read_body(response: http.client.HTTPResponse, most: int) -> bytes:
    """The body of an answer. Raises Internal for one that is too long, before it takes memory."""
    answer, length = b"", response.length  # None if the header is missing
    if length is None:
        answer = response.read(most + 1)
        length = len(answer)
    elif length <= most:
        answer = response.read()
    if length > most:
        raise answer_too_large(length, most)
    return answer


def _error_for_status(status: int, answer: bytes) -> InvalidInputs | ModelFailed | Unavailable:
    said = f"The container answered {status}: {_shorten_text(answer)}"
    if status in _BUSY:
        return Unavailable(said)
    return InvalidInputs(said) if status < _FAILED else ModelFailed(said)


def _shorten_text(answer: bytes) -> str:
    return answer[:_MAX_SHOWN].decode(errors="replace").strip() or "nothing"


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")
