"""One request inside the node, from its arrival to its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from serving.http_headers import Headers
from serving.node.codecs import Codec, DecodedRequest
from serving.runtimes.instance_batch import Batch, concatenation_key, count_rows
from serving.runtimes.prediction_methods import UNBATCHED_PARAMETERS

NO_SLOT = -1


class NodeRequest:
    """One request; subclasses send the answer to where it came from.

    `deadline` is on `time.monotonic`, `body_size` in bytes, `slot` the index of its request mark, `NO_SLOT`
    for none. `wants_timing`: the answer has a Server-Timing header. `is_finished`: answered or cancelled.
    `codec` has decoded it to `decoded` and encodes its answer; None for AI Platform's JSON.

    `received_at`, `parsed_at` and `infer_seconds` are for `serving.node.request_marks`, in seconds.
    """

    __slots__ = (
        "_batch_key", "body_size", "codec", "deadline", "decoded", "infer_seconds", "instances",
        "is_finished", "never_batch", "parameters", "parsed_at", "received_at", "rows", "slot",
        "wants_timing",
    )  # fmt: skip

    decoded: DecodedRequest
    instances: Batch
    parameters: Mapping[str, Any]
    rows: int
    deadline: float
    body_size: int
    received_at: float
    parsed_at: float

    def __init__(self, slot: int = NO_SLOT, *, never_batch: bool = False, wants_timing: bool = False) -> None:
        self.slot = slot
        self.never_batch = never_batch
        self.wants_timing = wants_timing
        self.codec: Codec | None = None
        self.is_finished = False
        self.infer_seconds = 0.0
        self._batch_key: tuple[object, ...] | None = None

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Send the answer; it is JSON unless the first header is its content type."""
        raise NotImplementedError

    def decode_body(self, codec: Codec, body: bytes | bytearray) -> None:
        """Set the inputs from the body. Raises as `Codec.decode_request` does."""
        self.codec = codec
        self.decoded = decoded = codec.decode_request(body)
        self.set_inputs(decoded.instances, decoded.parameters)

    def set_inputs(self, instances: Batch, parameters: Mapping[str, Any]) -> None:
        self.instances = instances
        self.parameters = parameters
        self.rows = count_rows(instances)
        if parameters and not UNBATCHED_PARAMETERS.isdisjoint(parameters):
            self.never_batch = True

    def can_share_call(self, other: NodeRequest) -> bool:
        return self.batch_key == other.batch_key

    @property
    def batch_key(self) -> tuple[object, ...]:
        """What requests must share to be answered by one call."""
        key = self._batch_key
        if key is None:
            parameters = self.parameters
            options = orjson.dumps(parameters, option=orjson.OPT_SORT_KEYS) if parameters else b""
            # JSON has no tuples: such parameters come from codecs, and never equal those of clients.
            has_tuples = bool(parameters) and any(isinstance(value, tuple) for value in parameters.values())
            key = self._batch_key = (concatenation_key(self.instances), options, has_tuples)
        return key
