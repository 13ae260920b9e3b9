"""One request inside the node, from its arrival to its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from serving.node.dialects import Asked, Reader
from serving.runtimes.instances import Batch, concatenation_key, count_rows
from serving.runtimes.methods import UNBATCHED_PARAMETERS
from serving.wire import Headers

NOWHERE = -1


class Request:
    """What is known of one request; how it is answered is up to where it came from.

    `deadline` is on `time.monotonic`, `size` that of its body in bytes, `slot` its place on the board,
    `NOWHERE` if it has none. One that is `alone` shares its call with no other; `told` says whether the
    answer is to say how long things took. It is `over` when nobody waits for the answer any more, or it was
    given.
    `reader` is what has read it as `asked` and writes its answer; ordinary JSON has none.

    `began`, `parsed` and `infer` are the times that `serving.node.watch` needs, in seconds.
    """

    __slots__ = (
        "_kind", "alone", "asked", "began", "deadline", "infer", "instances", "over", "parameters", "parsed",
        "reader", "rows", "size", "slot", "told",
    )  # fmt: skip

    asked: Asked
    instances: Batch
    parameters: Mapping[str, Any]
    rows: int
    deadline: float
    size: int
    began: float
    parsed: float

    def __init__(self, slot: int = NOWHERE, *, alone: bool = False, told: bool = False) -> None:
        self.slot = slot
        self.alone = alone
        self.told = told
        self.reader: Reader | None = None
        self.over = False
        self.infer = 0.0
        self._kind: tuple[object, ...] | None = None

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Send the answer; it is JSON unless the first of the headers is its content type."""
        raise NotImplementedError

    def read(self, reader: Reader, body: bytes | bytearray) -> None:
        """Have a dialect read its body. Raises what that raises."""
        self.reader = reader
        self.asked = asked = reader.read(body)
        self.fill(asked.instances, asked.parameters)

    def fill(self, instances: Batch, parameters: Mapping[str, Any]) -> None:
        """Take what its body says."""
        self.instances = instances
        self.parameters = parameters
        self.rows = count_rows(instances)
        if parameters and not UNBATCHED_PARAMETERS.isdisjoint(parameters):
            self.alone = True

    def fits(self, other: Request) -> bool:
        """Whether both may be answered by one call."""
        return self.kind == other.kind

    @property
    def kind(self) -> tuple[object, ...]:
        """What requests must share to be answered by one call."""
        kind = self._kind
        if kind is None:
            parameters = self.parameters
            key = orjson.dumps(parameters, option=orjson.OPT_SORT_KEYS) if parameters else b""
            # What clients send has no tuples: those are words between a dialect and a runtime.
            own = bool(parameters) and any(isinstance(value, tuple) for value in parameters.values())
            kind = self._kind = (concatenation_key(self.instances), key, own)
        return kind
