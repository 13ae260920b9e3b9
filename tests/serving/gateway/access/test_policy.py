"""Policies on names as callers choose them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.errors import Unauthenticated
from serving.gateway.access.access_control import AccessControl
from serving.gateway.access.policy import Binding, Policy, is_allowed
from serving.gateway.access.roles import PUBLIC_ROLES
from serving.gateway.access.token_store import TokenStore
from serving.gateway.request_context import ANONYMOUS_CALLER

PREDICT = "ml.versions.predict"


@dataclass(frozen=True)
class Kept:
    policy: Policy


def open_to_all(resource: str) -> Mapping[str, Kept]:
    return {resource: Kept(Policy(bindings=(Binding(role="roles/viewer", members=("allUsers",)),)))}


def test_no_role_that_everybody_may_have_reads_logs() -> None:
    """They have what other callers sent, and who these are."""
    for role in PUBLIC_ROLES:
        everybody = {"server": Kept(Policy(bindings=(Binding(role=role, members=("allUsers",)),)))}
        assert is_allowed(everybody, ANONYMOUS_CALLER, "ml.versions.get", "projects/p/models/m/versions/v")
        assert not is_allowed(
            everybody, ANONYMOUS_CALLER, "logging.logEntries.list", "projects/p/models/m/versions/v"
        )


def test_a_name_of_any_depth_is_looked_up_at_once() -> None:
    """Nothing is that far down; who may everything may ask for it all the same."""
    deep = "projects/p/models/m/" + "a/" * 30_000
    began = time.process_time()

    assert not any(is_allowed(open_to_all("projects/p"), ANONYMOUS_CALLER, PREDICT, deep) for _ in range(100))
    assert time.process_time() - began < 0.5
    assert is_allowed(open_to_all("server"), ANONYMOUS_CALLER, PREDICT, deep)
    assert is_allowed(open_to_all("projects/p"), ANONYMOUS_CALLER, PREDICT, "projects/p/models/m/labels/l")


def test_long_names_are_not_remembered(tmp_path: Path) -> None:
    """Callers who may ask choose them, and there are many."""
    store = TokenStore(tmp_path / "state.db")
    access = AccessControl(store)
    access.set_policies(open_to_all("projects/p"))
    for number in range(3):
        name = f"projects/p/models/m/versions/{'v' * 2000}{number}"
        access.authorize_prediction({"headers": []}, PREDICT, name)
    access.authorize_prediction({"headers": []}, PREDICT, "projects/p/models/m/versions/v1")

    assert access._allowed == {(ANONYMOUS_CALLER, "projects/p/models/m/versions/v1")}
    with pytest.raises(Unauthenticated):
        access.authorize_prediction({"headers": []}, PREDICT, "projects/q/models/m/versions/v1")
    access.close()
