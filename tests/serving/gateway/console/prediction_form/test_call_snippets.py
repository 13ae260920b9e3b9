"""What is copied does what the form does, whatever the request is made of."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

from serving.gateway.console.prediction_form.call_snippets import list_snippets
from serving.names import VersionName

SERVER = "http://127.0.0.1:8080"
VERSION = VersionName("p", "m", "v1")
TARGET = f"{SERVER}/v1/projects/p/models/m/versions/v1:predict"
REQUESTS = ['{"instances": [1]}', '{"instances": ["it\'s \\"$HOME\\" `id`", "ü\\u2028"]}', "{\n}\n"]


@pytest.mark.parametrize("request_text", REQUESTS)
def test_each_sends_the_same_request(request_text: str) -> None:
    texts = {one.label: one.text for one in list_snippets(SERVER, VERSION, request_text)}

    assert shlex.split(texts["curl"])[1:] == [
        TARGET,
        "-H",
        "Content-Type: application/json",
        "-d",
        request_text,
    ]
    call = ast.parse(texts["Python"]).body[1]
    constants = [one.value for one in ast.walk(call) if isinstance(one, ast.Constant)]
    assert TARGET in constants
    assert request_text.encode() in constants
    assert shlex.split(texts["pilotlight"])[:2] == ["echo", request_text]
    assert "--model m --version v1" in texts["pilotlight"]
    assert f"(echo {shlex.quote(request_text)})" in texts["gcloud"]
    assert json.dumps(SERVER + "/").strip('"') in texts["gcloud"]
