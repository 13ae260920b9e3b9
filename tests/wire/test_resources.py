"""The structs of `serving.resources` are those of the discovery document."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest

from serving import resources
from serving.errors import InvalidArgument
from serving.resources import (
    HyperparameterMetric,
    Job,
    JobState,
    Model,
    Operation,
    OperationMetadata,
    Resource,
    RpcStatus,
    Version,
    VersionState,
    resource_from_json,
)
from tests.wire.test_discovery import discovery

SCHEMAS: dict[str, Any] = discovery()["schemas"]
PREFIX = "GoogleCloudMlV1__"

# What our answers have beyond the document, and the fields that this server never fills.
OURS: dict[type[Resource], set[str]] = {
    OperationMetadata: {"phase", "warnings"},
    Job: {"batchOptions", "trainingOptions"},
    Version: {"predictionMethod", "warnings"},
}
NEVER: dict[type[Resource], set[str]] = {
    OperationMetadata: {"projectNumber"},  # any well-formed project exists, and none has a number
    RpcStatus: {"details"},  # the reason is in the message
}
NAMES: dict[str, type[Resource]] = {
    "GoogleLongrunning__Operation": Operation,
    "GoogleRpc__Status": RpcStatus,
    "GoogleCloudMlV1_HyperparameterOutput_HyperparameterMetric": HyperparameterMetric,
    **{
        PREFIX + kind.__name__: kind
        for kind in vars(resources).values()
        if isinstance(kind, type) and issubclass(kind, Resource) and PREFIX + kind.__name__ in SCHEMAS
    },
}


def wire_names(kind: type[Resource]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


def reachable(schema: str) -> set[str]:
    """A schema and all it refers to."""
    found, waiting = set(), [schema]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            never = NEVER.get(NAMES[name], set())
            fields = SCHEMAS[name].get("properties", {})
            for field in [fields[field] for field in fields.keys() - never]:
                waiting += [ref for ref in (field.get("$ref"), field.get("items", {}).get("$ref")) if ref]
    return found


ALL = sorted(
    {name for root in ("Model", "Version", "Job", "OperationMetadata") for name in reachable(PREFIX + root)}
    | {"GoogleLongrunning__Operation", "GoogleRpc__Status"}
)


@pytest.mark.parametrize("schema", ALL)
def test_a_struct_has_the_fields_of_its_schema(schema: str) -> None:
    """Same names, in camelCase, and types that carry the same JSON."""
    kind = NAMES[schema]
    hints = typing.get_type_hints(kind)
    fields = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}
    described = SCHEMAS[schema]["properties"]

    assert fields.keys() - OURS.get(kind, set()) == described.keys() - NEVER.get(kind, set())
    for name in (fields.keys() & described.keys()) - NEVER.get(kind, set()):
        assert fits(fields[name], described[name]), f"{schema}.{name}: {fields[name]} for {described[name]}"


def test_every_state_of_a_version_is_known() -> None:
    """All but UNKNOWN, which is no state but the lack of one."""
    described = set(SCHEMAS[PREFIX + "Version"]["properties"]["state"]["enum"])

    assert {str(state) for state in VersionState} == described - {"UNKNOWN"}


def test_every_state_of_a_job_is_known() -> None:
    """All but STATE_UNSPECIFIED, which is no state but the lack of one."""
    described = set(SCHEMAS[PREFIX + "Job"]["properties"]["state"]["enum"])

    assert {str(state) for state in JobState} == described - {"STATE_UNSPECIFIED"}


@pytest.mark.parametrize("schema", ALL)
def test_an_int64_is_read_as_a_number_too(schema: str) -> None:
    """And shown as a string."""
    kind, described = NAMES[schema], SCHEMAS[schema]["properties"]
    found = [name for name in described.keys() & wire_names(kind) if described[name].get("format") == "int64"]

    for name in found:
        for number in (7, "7"):
            read = resource_from_json(kind, {name: number})
            assert resources.resource_to_json(read) == {name: "7"}, name


@pytest.mark.parametrize("flag", [True, [7], {"value": 7}])
def test_what_is_no_number_is_not_read_as_one(flag: object) -> None:
    """It is refused with the place."""
    with pytest.raises(InvalidArgument, match="batchSize"):
        resource_from_json(Job, {"predictionInput": {"batchSize": flag}})


@pytest.mark.parametrize("nodes", [1 << 31, str(1 << 31), -(1 << 40), 1 << 63, 1e30, "9" * 30, "9" * 5000])
def test_integers_have_32_bits(nodes: object) -> None:
    """What could not be written into an answer is not taken; the field is named."""
    with pytest.raises(InvalidArgument, match=r'"manualScaling\.nodes" is no number of 32 bits'):
        resource_from_json(Version, {"manual_scaling": {"nodes": nodes}})

    assert resource_from_json(Version, {"manualScaling": {"nodes": str((1 << 31) - 1)}}).manual_scaling


def test_everything_starts_from_here() -> None:
    """What requests and answers are made of is covered by the test above."""
    assert {NAMES[name] for name in ALL} >= {Model, Version, Job, OperationMetadata, Operation, RpcStatus}


def fits(hint: Any, field: dict[str, Any]) -> bool:
    """Whether a type takes and gives the JSON that the document describes."""
    arguments = [argument for argument in typing.get_args(hint) if argument not in (type(None), ...)]
    if type(None) in typing.get_args(hint):
        (hint,) = arguments
    if "$ref" in field:
        return bool(hint is NAMES[field["$ref"]])
    match field["type"]:
        case "array":
            return typing.get_origin(hint) is tuple and fits(arguments[0], field["items"])
        case "object" if field["additionalProperties"]["type"] == "string":
            return bool(hint == dict[str, str])
        case "object":
            return bool(hint == dict[str, Any] or hint is OperationMetadata)
        case "string":
            return hint in (str, VersionState, JobState)
        case simple:
            return bool(hint is {"boolean": bool, "integer": int, "number": float}[simple])
