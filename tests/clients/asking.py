"""What these programs are asked to do: JSON on their input, JSON on their output.

`{"url": HOST:PORT, "asks": [...]}`; an ask is `{"model", "version", "id", "inputs", "outputs", "parameters",
"binary"}`, an input `{"name", "datatype", "data"}` with nested lists. What was answered to it is
`{"outputs": {name: [datatype, nested list]}, "id", "version"}`, or `{"error": text}`. Bytes are text here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Ask = dict[str, Any]
Told = dict[str, Any]
Call = Callable[[Ask], Told]

_DTYPES = {"BOOL": "bool", "BYTES": "object", "FP16": "float16", "FP32": "float32", "FP64": "float64"}


def run(connect: Callable[[str], tuple[Told, Call]], errors: type[Exception]) -> None:
    """Do what the input says; `connect` gives what the server tells of itself, and what asks it."""
    job = json.load(sys.stdin)
    about, call = connect(job["url"])
    answers = []
    for ask in job["asks"]:
        try:
            answers.append(call(ask))
        except errors as error:
            answers.append({"error": str(error)})
    json.dump({"about": about, "answers": answers}, sys.stdout)


def array(given: Mapping[str, Any]) -> Any:
    """The values of an input."""
    import numpy as np

    datatype = given["datatype"]
    values = np.array(given["data"], _DTYPES.get(datatype, datatype.lower()))
    if datatype == "BYTES":
        values = np.array([text.encode() for text in values.reshape(-1)], object).reshape(values.shape)
    return values


def shown(datatype: str, values: Any) -> list[Any]:
    """The values of an output."""
    listed = values.tolist()
    return [datatype, _texts(listed) if datatype == "BYTES" else listed]


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(element) for element in value]
    return value.decode() if isinstance(value, bytes) else value
