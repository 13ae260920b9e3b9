"""Requests, and which of them may share a call."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving.node.request import NodeRequest


def request(**parameters: Any) -> NodeRequest:
    made = NodeRequest()
    made.set_inputs({"inputs": np.array([b"x"], object)}, parameters)
    return made


def test_requests_with_the_same_parameters_share_a_call() -> None:
    """In whatever order these are."""
    assert request(a=1, b="x").can_share_call(request(b="x", a=1))
    assert request().can_share_call(request())
    assert not request(a=1).can_share_call(request(a=2))


def test_clients_cannot_say_what_dialects_say() -> None:
    """What is a tuple of a dialect is a list of a client: a runtime takes it for another thing."""
    assert request(signature_names=("a", "b")).can_share_call(request(signature_names=("a", "b")))
    assert not request(signature_names=("a", "b")).can_share_call(request(signature_names=["a", "b"]))
