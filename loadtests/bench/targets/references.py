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
    """An ASGI application that reads the request and answers a constant."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _BODY})


def plain() -> Any:
    """A Starlette application with the model in MODEL_DIR."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    predict = _load_predict(Path(os.environ["MODEL_DIR"]))

    async def answer(request: Request) -> Response:
        found = predict(orjson.loads(await request.body())["instances"])
        body = orjson.dumps({"predictions": found}, option=orjson.OPT_SERIALIZE_NUMPY)
        return Response(body, media_type="application/json")

    return Starlette(routes=[Route("/predict", answer, methods=["POST"])])


def _load_predict(folder: Path) -> Callable[[Any], Any]:
    """The library's documented way from rows to predictions."""
    import numpy as np

    if (folder / "model.joblib").exists():
        import joblib

        model = joblib.load(folder / "model.joblib")
        return lambda rows: model.predict(np.array(rows, np.float64))
    if (folder / "model.bst").exists():
        import xgboost

        booster = xgboost.Booster(model_file=str(folder / "model.bst"))
        booster.set_param({"nthread": 1})
        return lambda rows: booster.inplace_predict(np.array(rows, np.float32))
    import tensorflow as tf

    model = tf.saved_model.load(str(folder))  # has to live as long as its signature
    (name,) = model.signatures["serving_default"].structured_input_signature[1]

    def predict(rows: Any) -> Any:
        (found,) = model.signatures["serving_default"](
            **{name: tf.constant(np.array(rows, np.float32))}
        ).values()
        return found.numpy()

    return predict
