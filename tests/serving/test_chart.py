"""The Helm chart of the server: as far as it can be read without helm, and what helm makes of it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.config import PREFIX, ServeConfig
from tests.dockerfile import ROOT, read

CHART = ROOT / "serving" / "containers" / "chart"
TEMPLATES = sorted((CHART / "templates").iterdir())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
SETTINGS = {field.name for field in dataclasses.fields(ServeConfig)}


def test_every_block_of_a_template_ends() -> None:
    for path in TEMPLATES:
        words = re.findall(r"\{\{-?\s*(?:/\*.*?\*/|(\w+))", path.read_text(), re.DOTALL)
        begun = [word for word in words if word in {"if", "range", "with", "define"}]
        assert len(begun) == words.count("end"), path.name


def test_templates_use_values_that_are_there() -> None:
    """And the schema knows each value, in any depth."""
    used = {name for path in TEMPLATES for name in re.findall(r"\.Values\.([\w.]+)", path.read_text())}
    assert used >= {"image.repository", "database.existingSecret", "stopDelay"}
    for name in used - {"nameOverride", "fullnameOverride"}:
        found: Any = VALUES
        for part in name.split("."):
            assert part in found, name
            found = found[part]
    assert SCHEMA["properties"].keys() >= VALUES.keys()
    for name, value in VALUES.items():
        schema = SCHEMA["properties"][name]
        if schema.get("additionalProperties") is False and name != "settings":
            assert schema["properties"].keys() == value.keys(), name


def test_the_server_has_every_setting_that_the_chart_sets() -> None:
    text = (CHART / "templates" / "deployment.yaml").read_text()
    given = {name.lower() for name in re.findall(rf"name: {PREFIX}(\w+)\n", text)}
    assert {"state", "host", "port", "stop_delay", "request_timeout", "stop_timeout"} <= given
    assert given | VALUES["settings"].keys() <= SETTINGS


def test_no_setting_is_given_twice() -> None:
    """The chart refuses those that it sets itself, by the value to set instead."""
    given = (CHART / "templates" / "deployment.yaml").read_text()
    names = (CHART / "templates" / "_names.tpl").read_text()
    (table,) = re.findall(r"\$instead := dict(.*?)-\}\}", names, re.DOTALL)
    words = re.findall(r'"([\w.]*)"', table)
    refused, instead = set(words[::2]), set(words[1::2]) - {""}
    assert refused == {name.lower() for name in re.findall(rf"name: {PREFIX}(\w+)\n", given)}
    assert {name.partition(".")[0] for name in instead} <= VALUES.keys()


def test_a_setting_that_the_server_does_not_have_is_refused() -> None:
    """It would be a variable that nobody reads."""
    assert SCHEMA["properties"]["settings"]["properties"].keys() == SETTINGS
    assert SCHEMA["properties"]["settings"]["additionalProperties"] is False


def test_values_say_how_long_the_server_waits_by_itself() -> None:
    """What is left out of the values is as the server has it."""
    assert VALUES["requestTimeout"] == ServeConfig().request_timeout


@pytest.mark.parametrize("path", [path for path in TEMPLATES if path.suffix == ".yaml"], ids=lambda p: p.stem)
def test_a_template_is_yaml_but_for_its_actions(path: Path) -> None:
    """With each action that stands alone left out, and a word in place of each other."""
    lines = [line for line in path.read_text().splitlines() if not re.fullmatch(r"\s*\{\{.*\}\}\s*", line)]
    documents = list(yaml.safe_load_all(re.sub(r"\{\{.*?\}\}", "x", "\n".join(lines))))
    for document in documents:
        assert {"apiVersion", "kind", "metadata"} <= document.keys()


def test_the_pod_asks_for_no_rights() -> None:
    """It runs as the user of the image, who is nobody, and can write to its two folders alone."""
    text = (CHART / "templates" / "deployment.yaml").read_text()
    steps = read((ROOT / "serving/containers/Dockerfile.server").read_text())
    (user,) = [step.text for step in steps if step.word == "USER"]
    for line in (
        f"runAsUser: {user.partition(':')[0]}",
        "runAsNonRoot: true",
        "readOnlyRootFilesystem: true",
        "allowPrivilegeEscalation: false",
        "capabilities: {drop: [ALL]}",
        "automountServiceAccountToken: false",
    ):
        assert line in text
    mounted = re.findall(r"mountPath: ([\w/]+)", text)
    secrets = ["/etc/pilotlight/peers", "/etc/pilotlight/kubernetes"]
    assert mounted == ["/var/lib/pilotlight", "/tmp", *secrets]
    for folder in secrets:
        assert f"mountPath: {folder}, readOnly: true" in text
    assert "persistentVolumeClaim" not in text


def test_the_leader_may_change_the_number_of_its_own_pods_alone() -> None:
    text = (CHART / "templates" / "role.yaml").read_text()
    (rules,) = re.findall(r"\nrules:\n(.*?)---", text, re.DOTALL)
    (rule,) = yaml.safe_load(rules.replace('{{ include "pilotlight.fullname" . | quote }}', "NAME"))
    assert rule == {
        "apiGroups": ["apps"],
        "resources": ["deployments/scale"],
        "resourceNames": ["NAME"],
        "verbs": ["get", "patch"],
    }


def render(values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The objects that helm makes of the chart; the test is skipped where there is no helm."""
    program = shutil.which("helm")
    if program is None:
        pytest.skip("helm is not installed")
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [program, "template", "release", str(CHART), "--values", str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def test_helm_makes_the_objects(tmp_path: Path) -> None:
    """With settings as the server reads them, however long a number is."""
    values = {
        "image": {"repository": "r/server"},
        "database": {"existingSecret": "database"},
        "stopDelay": 0.5,
        "settings": {"memory_bytes": 4294967296, "tick": 0.2, "console": False, "trusted_sources": "gs://a"},
    }
    objects = {document["kind"]: document for document in render(values, tmp_path)}

    assert objects.keys() == {
        "Deployment", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 96
    (container,) = pod["containers"]
    assert container["image"] == "r/server:0.1.0"
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert given["PILOTLIGHT_MEMORY_BYTES"] == "4294967296"
    assert given["PILOTLIGHT_TICK"] == "0.2"
    assert given["PILOTLIGHT_CONSOLE"] == "false"
    selector = objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert selector == objects["Service"]["spec"]["selector"]
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()
    assert [one["name"] for one in objects["Service"]["spec"]["ports"]] == ["http"]
