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
    """What is known of one request; how it is answered is up to where it came from.

    `deadline` is on `time.monotonic`, `size` that of its body in bytes, `slot` its place on the board,
    `NOWHERE` if it has none. One that is `alone` shares its call with no other; `told` says whether the
    answer is to say how long things took. It is `over` when nobody waits for the answer any more, or it was
    given.
    `reader` is what has read it as `asked` and writes its answer; ordinary JSON has none.

    `began`, `parsed` and `infer` are the times that `serving.node.request_marks` needs, in seconds.
    """

    __slots__ = (
        "_batch_key", "body_size", "codec", "deadline", "decoded", "infer_seconds", "instances", "is_finished",
        "never_batch", "parameters", "parsed_at", "received_at", "rows", "slot", "wants_timing",
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
        """Send the answer; it is JSON unless the first of the headers is its content type."""
        raise NotImplementedError

    def decode_body(self, codec: Codec, body: bytes | bytearray) -> None:
        """Have a dialect read its body. Raises what that raises."""
        self.codec = codec
        self.decoded = asked = codec.decode_request(body)
        self.set_inputs(asked.instances, asked.parameters)

    def set_inputs(self, instances: Batch, parameters: Mapping[str, Any]) -> None:
        """Take what its body says."""
        self.instances = instances
        self.parameters = parameters
        self.rows = count_rows(instances)
        if parameters and not UNBATCHED_PARAMETERS.isdisjoint(parameters):
            self.never_batch = True

    def can_share_call(self, other: NodeRequest) -> bool:
        """Whether both may be answered by one call."""
        return self.batch_key == other.batch_key

    @property
    def batch_key(self) -> tuple[object, ...]:
        """What requests must share to be answered by one call."""
        kind = self._batch_key
        if kind is None:
            parameters = self.parameters
            key = orjson.dumps(parameters, option=orjson.OPT_SORT_KEYS) if parameters else b""
            # What clients send has no tuples: those are words between a dialect and a runtime.
            own = bool(parameters) and any(isinstance(value, tuple) for value in parameters.values())
            kind = self._batch_key = (concatenation_key(self.instances), key, own)
        return kind
