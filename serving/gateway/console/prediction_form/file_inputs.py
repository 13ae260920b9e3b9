"""Files in a request: which inputs of a model take bytes, and how a file gets into an instance. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serving.errors import BodyTooLarge, InvalidArgument
from serving.frameworks import find_by_platform

Json = dict[str, Any]

# A form has at most 4 MiB, and base64 takes a third more.
MAX_FILE_BYTES: Final = 2 << 20
_MAX_INPUTS: Final = 8
_BYTES_TYPE: Final = "BYTES"
_UNKNOWN: Final = "instances"
_STANDARD_ALPHABET: Final = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class FileInput:
    """An input that takes bytes; `signature` is "" if it is of the default one. `is_list`: a list of one."""

    name: str
    signature: str = ""
    is_list: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} (signature {self.signature})" if self.signature else self.name


def list_file_inputs(schema: Mapping[str, Any]) -> Sequence[FileInput]:
    """The inputs of a schema, as the API returns it, that the bytes of a file may be given for.

    Texts are bytes too. What user code takes is what its owner has declared.
    """
    if schema["strict"] and not find_by_platform(schema["platform"]).takes_named_tensors:
        return ()
    default = schema["defaultSignature"]
    # Those of the default signature first, each name once.
    signatures = sorted(schema["signatures"].items(), key=lambda item: item[0] != default)
    found: dict[str, FileInput] = {}
    for signature, parts in signatures:
        for tensor in parts["inputs"]:
            name, shape = tensor["name"], tensor["shape"]
            if name == _UNKNOWN and not schema["strict"]:
                continue  # user code of which nothing is declared
            if tensor["datatype"] == _BYTES_TYPE and shape in (None, [-1], [-1, 1]):
                own = "" if signature == default else signature
                found.setdefault(name, FileInput(name, own, is_list=shape == [-1, 1]))
    return list(found.values())[:_MAX_INPUTS]


def decode_file(text: str) -> bytes:
    """The bytes that a form has in base64, of either alphabet. Raises InvalidArgument, BodyTooLarge."""
    padded = text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4)
    try:
        content = base64.b64decode(padded.translate(_STANDARD_ALPHABET), validate=True)
    except binascii.Error as error:
        raise InvalidArgument("The file did not arrive whole: choose it again.", field="file") from error
    if len(content) > MAX_FILE_BYTES:
        raise BodyTooLarge(
            f"The file has {len(content):,} bytes; the form takes {MAX_FILE_BYTES:,}. Send a larger one by "
            "one of the calls below.",
            field="file",
        )
    return content


def insert_file(request: Mapping[str, Any], file_input: FileInput, content: bytes, default: str) -> Json:
    """The request with the bytes in its first instance, which keeps what it has for other inputs.

    `default` is the default signature. A request of another signature than the input becomes one of it.
    """
    signature = file_input.signature or default
    instances = request.get("instances")
    first, rest = {}, []
    if isinstance(instances, list) and request.get("signature_name", default) == signature:
        first, rest = (instances[0] if instances and isinstance(instances[0], dict) else {}), instances[1:]
    if list(first) == ["b64"] and file_input.name != "b64":
        first = {}  # the value of the only input, without its name
    value: Any = {"b64": base64.b64encode(content).decode()}
    instance = {**first, file_input.name: [value] if file_input.is_list else value}
    named = {"signature_name": file_input.signature} if file_input.signature else {}
    return {**request, **named, "instances": [instance, *rest]}
