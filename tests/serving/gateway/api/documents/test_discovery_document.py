"""The document that clients build themselves from, beside the one that Google's client packages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serving.gateway.api.documents.discovery_document import build_document
from tests.wire.test_discovery import discovery, methods

GOOGLES = discovery()
OURS = build_document("http://server/", tokens=True)
# Not offered here: roles say what a token may do.
READ_ONLY = "https://www.googleapis.com/auth/cloud-platform.read-only"
OWN_WORDS = {"description", "enumDescriptions"}


def by_id(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {method["id"]: method for method in methods(found["resources"])}


def without_words(value: Any) -> Any:
    """What programs go by."""
    if isinstance(value, dict):
        return {key: without_words(entry) for key, entry in value.items() if key not in OWN_WORDS}
    return value


@pytest.mark.parametrize("method", sorted(by_id(GOOGLES)))
def test_every_method_is_as_googles(method: str) -> None:
    """Verb, paths, parameters with their types and patterns, and the names of its messages."""
    ours, googles = without_words(by_id(OURS)[method]), without_words(by_id(GOOGLES)[method])
    googles["scopes"] = [scope for scope in googles["scopes"] if scope != READ_ONLY]

    assert ours == googles


def test_there_are_no_other_methods() -> None:
    """A client has none that it would not have of Google's."""
    assert by_id(OURS).keys() == by_id(GOOGLES).keys()


def test_the_parameters_of_all_methods_are_googles() -> None:
    """But for answers in other forms than JSON."""
    ours, googles = without_words(OURS["parameters"]), without_words(GOOGLES["parameters"])

    assert ours["alt"].pop("enum") == ["json"]
    assert googles["alt"].pop("enum") == ["json", "media", "proto"]
    del googles["$.xgafv"]["enum"]
    assert ours == googles


def references(value: Any) -> Iterator[str]:
    """The names of all messages that are spoken of."""
    if isinstance(value, dict):
        if isinstance(name := value.get("$ref"), str):
            yield name
        for entry in value.values():
            yield from references(entry)


def test_messages_have_googles_names_and_fields() -> None:
    """Those that have fields here have all of Google's, of the same kind, and their own besides."""
    missing, other = set(), set()
    for name, shape in OURS["schemas"].items():
        googles = GOOGLES["schemas"].get(name, {}).get("properties", {})
        ours = shape["properties"]
        if ours:
            missing |= {f"{name}.{field}" for field in googles.keys() - ours.keys()}
            other |= {
                f"{name}.{field}"
                for field in googles.keys() & ours.keys()
                if any(ours[field].get(key) != googles[field].get(key) for key in ("$ref", "type"))
            }

    assert set(references(OURS)) <= OURS["schemas"].keys()
    own = OURS["schemas"].keys() - GOOGLES["schemas"].keys()
    assert {name for name in own if not name.endswith("Options")} == set()
    assert missing == {
        "GoogleApi__HttpBody.extensions",
        "GoogleCloudMlV1__OperationMetadata.projectNumber",
        "GoogleLongrunning__ListOperationsResponse.unreachable",
    }
    # Values of any form.
    assert other == {
        "GoogleCloudMlV1__GetConfigResponse.config",
        "GoogleIamV1__Binding.condition",
    }


@pytest.mark.parametrize("key", ["name", "version", "id", "protocol", "servicePath", "basePath", "batchPath"])
def test_what_clients_put_urls_together_from_is_googles(key: str) -> None:
    """But for the root."""
    assert OURS[key] == GOOGLES[key]
    assert OURS["rootUrl"] == OURS["baseUrl"] == "http://server/"
    assert "mtlsRootUrl" not in OURS
