"""What a model takes and answers: its signatures, their tensors, and an instance that really predicts.

A node finds it out when it loads its version, and tells it with its report; the gateway keeps it with the
version, so that it is known while the version sleeps. Types are named as in the Open Inference Protocol.
"""

from __future__ import annotations

from typing import Any

import msgspec

DEFAULT = "serving_default"
PREDICT, CLASSIFY, REGRESS = (f"tensorflow/serving/{verb}" for verb in ("predict", "classify", "regress"))


class Tensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input or an output.

    `datatype` is BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64 or BYTES (text too). `shape`
    includes the rows, -1 where a size is open; None: the number of dimensions is. `tensor` is the name inside
    a graph, "" outside of TensorFlow. `classes` are the labels that an answer can have, or that its columns
    stand for, where the model knows them.
    """

    name: str
    datatype: str
    shape: tuple[int, ...] | None
    tensor: str = ""
    classes: tuple[Any, ...] = ()


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to call a model. `method` is one of TensorFlow Serving's method names."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    method: str = PREDICT


class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The signatures of a model by name, never none; `default` is the one that answers when none is named.

    `platform` is what the Open Inference Protocol calls the framework. `strict` says whether inputs are to be
    as they are declared: those of custom routines are only a form for what may be anything. `example` is an
    instance of an AI Platform request that was answered, `answer` its prediction; both None where none could
    be made.
    """

    platform: str
    signatures: dict[str, Signature]
    default: str = DEFAULT
    strict: bool = True
    example: Any = None
    answer: Any = None
