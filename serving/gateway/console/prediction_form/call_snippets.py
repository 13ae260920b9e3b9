"""One prediction as the programs that people have would ask for it, to be copied. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from serving.names import VersionName

_TYPE = "Content-Type: application/json"


@dataclass(frozen=True, slots=True)
class CallSnippet:
    label: str
    text: str


def list_snippets(server: str, version: VersionName, request: str) -> Sequence[CallSnippet]:
    """`server` is the address of this server, without a slash at its end; `request` is the body."""
    target = f"{server}/v1/{version}:predict"
    body = shlex.quote(request)
    names = f"--project {shlex.quote(version.project)} --model {shlex.quote(version.model)}"
    names += f" --version {shlex.quote(version.version)}"
    return (
        CallSnippet("curl", f"curl {shlex.quote(target)} -H {shlex.quote(_TYPE)} -d {body}"),
        CallSnippet(
            "Python",
            "import requests\n\n"
            f"answer = requests.post({target!r}, data={request.encode()!r},\n"
            "                       headers={'Content-Type': 'application/json'})\n"
            "print(answer.json())",
        ),
        CallSnippet(
            "gcloud",
            f"CLOUDSDK_API_ENDPOINT_OVERRIDES_ML={shlex.quote(server + '/')} gcloud ai-platform predict "
            f"{names} --region global --json-request <(echo {body})",
        ),
        CallSnippet(
            "pilotlight",
            f"echo {body} | pilotlight predict --server {shlex.quote(server)} {names} --json-request -",
        ),
    )
