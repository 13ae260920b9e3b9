"""Requests to a predictor, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from serving.http_headers import Headers
from serving.node.predict import NodePredictor
from serving.node.request import NO_SLOT, NodeRequest
from serving.protocols import DEFAULT_METADATA, RequestMetadata


@dataclass(frozen=True)
class Reply:
    """What was answered."""

    status: int
    headers: Mapping[str, str]
    json: Any


class Asked(NodeRequest):
    """Remembers its answer; `reply` is that once it is there."""

    def __init__(self, slot: int = NO_SLOT, **fields: bool) -> None:
        super().__init__(slot, **fields)
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def respond(self, status: int, body: bytes, headers: Headers) -> None:
        names = {name.decode(): value.decode() for name, value in headers}
        self.reply.set_result(Reply(status, names, orjson.loads(body)))


async def ask(
    predictor: NodePredictor,
    *instances: Any,
    slot: int = NO_SLOT,
    seconds: float = 60.0,
    fast_path: bool = True,
    call: RequestMetadata = DEFAULT_METADATA,
    **fields: bool,
) -> Reply:
    """The answer to one request."""
    asked = Asked(slot, **fields)
    predictor.predict(
        asked, orjson.dumps({"instances": instances}), seconds, idle_fast_path=fast_path, call=call
    )
    predictor.start_soon()
    return await asked.reply
