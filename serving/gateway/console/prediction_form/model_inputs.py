"""What a model takes and answers, in words, and the forms that a request may have. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from serving.frameworks import find_by_platform

Json = dict[str, Any]

# Stands for what only the reader can fill in; it makes a request no JSON, so that none is sent by mistake.
PLACEHOLDER: Final = "…"
_INSTANCES: Final = "instances"
_FIRST_COLUMN: Final = "column-0"
_BYTES: Final = "BYTES"
_MAX_CLASSES: Final = 12
# A form of more inputs shows the first of them.
_MAX_IN_FORM: Final = 6
# Pages cut longer texts, and a request that is cut is none.
_MAX_EXAMPLE: Final = 16_000
_LONG_EXAMPLE: Final = "Its example is too long for a page; `pilotlight versions schema` shows it."
_WORDS: Final[Mapping[str, str]] = {"BOOL": "true or false", _BYTES: "text"}


@dataclass(frozen=True, slots=True)
class TensorText:
    """An input or output: what one value of it is, and how many of them an instance has."""

    name: str
    kind: str
    shape: str
    classes: str = ""


@dataclass(frozen=True, slots=True)
class SignatureText:
    name: str
    is_default: bool
    inputs: tuple[TensorText, ...]
    outputs: tuple[TensorText, ...]


@dataclass(frozen=True, slots=True)
class RequestForm:
    """A form of a request's body: in words, and as JSON, with `PLACEHOLDER` where no example is known."""

    meaning: str
    body: str


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """`request` is a body to begin with, `answer` what came for it, "" where that is not known.

    `is_free` models are user code, which may take anything; `notes` are what else a request needs to know.
    """

    signatures: tuple[SignatureText, ...]
    forms: tuple[RequestForm, ...]
    request: str
    answer: str
    is_free: bool
    notes: tuple[str, ...]


def describe_model_inputs(schema: Mapping[str, Any]) -> ModelInputs:
    """`schema` is as the API returns it."""
    default = schema["defaultSignature"]
    if is_long := len(_to_json(schema.get("example"))) > _MAX_EXAMPLE:
        schema = {name: value for name, value in schema.items() if name not in ("example", "answer")}
    # The default one first.
    names = sorted(schema["signatures"], key=lambda name: name != default)
    signatures = tuple(
        SignatureText(
            name,
            name == default,
            *(
                tuple(map(_describe_tensor, schema["signatures"][name][side]))
                for side in ("inputs", "outputs")
            ),
        )
        for name in names
    )
    forms = tuple(form for name in names for form in _list_forms(schema, name))
    answer = schema.get("answer")
    return ModelInputs(
        signatures,
        forms,
        request=forms[0].body,
        answer="" if answer is None else _to_json({"predictions": [answer] * _count_rows(schema, default)}),
        is_free=not schema["strict"],
        notes=(*_list_notes(schema, default), *([_LONG_EXAMPLE] if is_long else [])),
    )


def _describe_tensor(tensor: Mapping[str, Any]) -> TensorText:
    datatype, shape, classes = tensor["datatype"], tensor["shape"], tensor.get("classes", ())
    if shape is None:
        return TensorText(tensor["name"], "text or any JSON", "any")
    kind = _WORDS.get(datatype, "whole number" if "INT" in datatype else "number")
    more = f" and {len(classes) - _MAX_CLASSES} more" if len(classes) > _MAX_CLASSES else ""
    return TensorText(
        tensor["name"],
        kind if datatype in _WORDS and datatype != _BYTES else f"{kind} ({datatype})",
        _describe_shape(shape[1:]),
        ", ".join(map(_to_json, classes[:_MAX_CLASSES])) + more,
    )


def _describe_shape(sizes: Sequence[int]) -> str:
    """Of the values of one instance, any size as -1."""
    match sizes:
        case []:
            return "one value"
        case [size]:
            return "a list of any length" if size < 0 else f"a list of {size}"
        case _:
            return f"lists in lists, {' x '.join('any' if size < 0 else str(size) for size in sizes)}"


def _list_forms(schema: Mapping[str, Any], name: str) -> Sequence[RequestForm]:
    """The forms of requests of one signature, the usual one first."""
    inputs = schema["signatures"][name]["inputs"]
    example = schema.get("example") if name == schema["defaultSignature"] else None
    named = {} if name == schema["defaultSignature"] else {"signature_name": name}

    def make_form(meaning: str, instance: str) -> RequestForm:
        fields = "".join(f", {_to_json(key)}: {_to_json(value)}" for key, value in named.items())
        rows = ", ".join([instance] * _count_rows(schema, name))
        return RequestForm(meaning, f'{{"instances": [{rows}]{fields}}}')

    if not schema["strict"] or not inputs:
        return [make_form("any JSON for each instance", _to_json_or_placeholder(example))]
    names = [tensor["name"] for tensor in inputs]
    if names == [_INSTANCES]:
        return [make_form(_describe_row(inputs[0]), _to_json_or_placeholder(example))]
    values = _list_values(names, example)
    objects = make_form("an object with a value for each input", _make_object(names, values))
    if find_by_platform(schema["platform"]).takes_named_tensors:
        if len(names) > 1:
            return [objects]
        return [make_form("the value of the only input, without its name", values[0]), objects]
    rows = make_form(f"a list of {len(names)} values, in the order of the inputs", _make_list(values))
    if names[0] == _FIRST_COLUMN:
        return [rows]
    return [rows, objects] if isinstance(example, list) else [objects, rows]


def _describe_row(tensor: Mapping[str, Any]) -> str:
    shape = tensor["shape"]
    what = "text or any JSON" if shape is None else _describe_shape(shape[1:])
    return f"{what} for each instance"


def _list_values(names: Sequence[str], example: Any) -> Sequence[str]:
    """The JSON of the value of each input."""
    match example:
        case None:
            return [PLACEHOLDER] * len(names)
        case dict() if set(names) <= set(example):
            return [_to_json(example[name]) for name in names]
        case list() if len(names) > 1 and len(example) == len(names):
            return list(map(_to_json, example))
        case _:
            return [_to_json(example)] if len(names) == 1 else [PLACEHOLDER] * len(names)


def _make_object(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = [f"{_to_json(name)}: {value}" for name, value in zip(names, values, strict=True)]
    return f"{{{', '.join(_truncate_parts(pairs, values))}}}"


def _make_list(values: Sequence[str]) -> str:
    return f"[{', '.join(_truncate_parts(values, values))}]"


def _truncate_parts(parts: Sequence[str], values: Sequence[str]) -> Sequence[str]:
    """A form that is to be filled in shows some of many inputs."""
    if PLACEHOLDER not in values or len(parts) <= _MAX_IN_FORM:
        return parts
    return [*parts[:_MAX_IN_FORM], PLACEHOLDER]


def _list_notes(schema: Mapping[str, Any], default: str) -> Sequence[str]:
    inputs = [tensor for parts in schema["signatures"].values() for tensor in parts["inputs"]]
    rows = _find_fixed_count(schema, default)
    exact = f"exactly {rows} {'instance' if rows == 1 else 'instances'}"
    notes = [f"A request has {'any number of instances' if rows is None else exact}."]
    if schema["strict"] and find_by_platform(schema["platform"]).takes_named_tensors:
        if any(tensor["datatype"] == _BYTES for tensor in inputs):
            notes.append('Bytes that are no text are given as {"b64": "BASE64"}.')
        if len(schema["signatures"]) > 1:
            notes.append(
                'Another signature than the default one is named beside the instances: "signature_name".'
            )
    if methods := [tensor["name"] for tensor in schema.get("methods", ())]:
        notes.append(
            f'"method" beside the instances asks for another method than {schema["method"]}: '
            f"{', '.join(methods)}."
        )
    return notes


def _count_rows(schema: Mapping[str, Any], name: str) -> int:
    """How many instances a form shows."""
    return _find_fixed_count(schema, name) or 1


def _find_fixed_count(schema: Mapping[str, Any], name: str) -> int | None:
    """The number of instances that a request must have, None where it is free."""
    inputs = schema["signatures"].get(name, {"inputs": ()})["inputs"]
    firsts = (tensor["shape"][0] for tensor in inputs if tensor["shape"])
    return next((first for first in firsts if first > 0), None)


def _to_json_or_placeholder(value: Any) -> str:
    return PLACEHOLDER if value is None else _to_json(value)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
