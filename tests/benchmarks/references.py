"""Two servers to be measured beside: `echo`, the limit of the HTTP stack, and `plain`, the best that people
write by hand: Starlette, orjson, and the library's own predict."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

Message = dict[str, Any]

_BODY = b'{"predictions":[0]}'


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Reads the request, answers a constant."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _BODY})


def plain() -> Any:
    """A Starlette application with the model in MODEL_DIR."""
    import joblib
    import numpy as np
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    model = joblib.load(Path(os.environ["MODEL_DIR"]) / "model.joblib")

    async def predict(request: Request) -> Response:
        rows = np.array(orjson.loads(await request.body())["instances"], np.float64)
        body = orjson.dumps({"predictions": model.predict(rows)}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])
