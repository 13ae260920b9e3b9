"""`pilotlight versions` and `pilotlight operations`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.end_to_end import models
from tests.server import Server
from tests.serving.cli.conftest import Run

SLOW = """
import time

class Slow:
    def predict(self, instances, **kwargs):
        return instances

    @classmethod
    def from_path(cls, model_dir):
        time.sleep(2)
        return cls()
"""


@pytest.fixture
def model(pilotlight: Run, request: pytest.FixtureRequest) -> str:
    """A model of the test's own."""
    name = request.node.name[:100]
    assert pilotlight(f"models create {name}").code == 0
    return str(name)


def test_a_version_from_its_creation_to_its_end(pilotlight: Run, model: str, models_dir: Path) -> None:
    """create waits and tells the phases; set-default, describe, list and delete do what they say."""
    origin = models_dir / "forest"
    created = pilotlight(f"versions create v1 --model {model} --origin {origin} --framework scikit-learn")
    second = pilotlight(f"versions create v2 --model {model} --origin {origin} --format json")
    default = pilotlight(f"versions set-default v2 --model {model}")
    listed = pilotlight(f"versions list --model {model}")
    models = pilotlight(f"models list --filter name={model}")
    described = yaml.safe_load(pilotlight(f"versions describe v2 --model {model}").out)
    told = yaml.safe_load(pilotlight(f"versions schema v2 --model {model}").out)
    deleted = pilotlight(f"versions delete v1 --model {model} -q")

    assert (created.code, created.out) == (0, "")
    first, *phases, last = created.err.splitlines()
    assert first == f"Creating version v1 of model {model} ..."
    # It asks now and then: a phase that is over sooner is not seen.
    assert [phase.split()[0] for phase in phases] in (["FETCHING", "LOADING"], ["FETCHING"], ["LOADING"], [])
    assert last.startswith(f"Created version v1 of model {model} in ")
    assert told["platform"] == "sklearn" and len(told["example"]) == 4
    assert described["acceleration"]["way"] != "plain"
    assert described["acceleration"]["ranges"][0]["rows"] == 1
    assert second.json["state"] == "READY"
    assert default.err == f"The default is now version v2 of model {model}.\n"
    assert [line.split() for line in listed.out.splitlines()] == [
        ["NAME", "DEPLOYMENT_URI", "STATE"],
        ["v1", str(origin), "READY"],
        ["v2", str(origin), "READY"],
    ]
    assert models.out.splitlines()[1].split() == [model, "v2"]
    assert described["isDefault"] is True
    assert deleted.code == 0
    assert deleted.err.splitlines()[-1] == f"Deleted version v1 of model {model}."
    assert pilotlight(f"versions describe v1 --model {model}").code == 1


def test_a_version_that_fails(pilotlight: Run, model: str, tmp_path: Path) -> None:
    """The reason is the error, the exit code is 1, and what to do next is said."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no model")
    failed = pilotlight(f"versions create v1 --model {model} --origin empty")

    assert (failed.code, failed.out) == (1, "")
    *_, advice, reason = failed.err.splitlines()
    assert advice.endswith(f"pilotlight versions delete v1 --model {model}")
    assert reason.startswith("ERROR: Create Version failed. Bad model detected")
    assert "notes.txt" in reason
    assert pilotlight(f"versions list --model {model} --format json").json[0]["state"] == "FAILED"


def test_every_flag_reaches_the_server(pilotlight: Run, model: str, tmp_path: Path) -> None:
    """What is only recorded is recorded, local paths are made absolute, and --async does not wait."""
    flags = (
        "--origin here --runtime-version 2.11 --python-version 3.7 --machine-type n1-standard-4 "
        "--accelerator type=nvidia-tesla-t4,count=2 --min-nodes 0 --max-nodes 3 "
        "--metric-targets cpu-usage=60,gpu-duty-cycle=70 --description Text --labels a=b "
        "--service-account someone@example.com --prediction-class m.C --package-uris p.tar.gz,gs://b/q.whl"
    )
    operation = pilotlight(f"versions create v1 --model {model} {flags} --async --format json")
    version = pilotlight(f"versions describe v1 --model {model} --format json").json

    assert operation.json["metadata"]["operationType"] == "CREATE_VERSION"
    expected = {
        "acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_T4"},
        "autoScaling": {
            "maxNodes": 3,
            "metrics": [{"name": "CPU_USAGE", "target": 60}, {"name": "GPU_DUTY_CYCLE", "target": 70}],
        },
        "deploymentUri": str(tmp_path / "here"),
        "description": "Text",
        "labels": {"a": "b"},
        "machineType": "n1-standard-4",
        "packageUris": [str(tmp_path / "p.tar.gz"), "gs://b/q.whl"],
        "predictionClass": "m.C",
        "pythonVersion": "3.7",
        "runtimeVersion": "2.11",
        "serviceAccount": "someone@example.com",
    }
    assert {key: version.get(key) for key in expected} == expected


def test_a_file_describes_a_version(pilotlight: Run, model: str, tmp_path: Path) -> None:
    """Fields come from the file, those of flags go before them."""
    (tmp_path / "version.yaml").write_text(
        "deploymentUri: nowhere\n"
        "runtimeVersion: '2.10'\n"
        "description: From the file\n"
        "framework: SCIKIT_LEARN\n"
        "labels: {from: file}\n"
        "autoScaling: {minNodes: 1, maxNodes: 2}\n"
    )
    flags = "--config version.yaml --max-nodes 5 --description Flag --async"
    created = pilotlight(f"versions create v1 --model {model} {flags}")
    version = pilotlight(f"versions describe v1 --model {model} --format json").json

    assert created.code == 0
    assert version["deploymentUri"] == str(tmp_path / "nowhere")
    assert version["runtimeVersion"] == "2.10"
    assert version["description"] == "Flag"
    assert version["labels"] == {"from": "file"}
    assert version["autoScaling"] == {"minNodes": 1, "maxNodes": 5}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("etag: x", "invalid fields etag; allowed are autoScaling, container, deploymentUri, "),
        ("deployment_uri: x", "invalid fields deployment_uri"),
        ("runtimeVersion: 2.10", "put runtimeVersion in quotes, like '2.1'"),
        ("deploymentUri: 5", "$.deploymentUri"),
        ("packageUris: gs://b/p.tar.gz", "$.packageUris"),
        ("autoScaling: {nodes: 5}", "nodes"),
        ("- a list", "must hold a mapping"),
        ("{", "Cannot read version.yaml"),
    ],
)
def test_files_that_are_refused(offline: Run, tmp_path: Path, content: str, problem: str) -> None:
    """Whatever is wrong with a file is told without a server, naming the file."""
    (tmp_path / "version.yaml").write_text(content)
    refused = offline("versions create v1 --model m --config version.yaml")

    assert refused.code == 1
    assert refused.err.startswith("ERROR: ")
    assert "version.yaml" in refused.err
    assert problem in refused.err


@pytest.mark.parametrize(
    "flags",
    [
        "--metric-targets memory=1",
        "--metric-targets cpu-usage=high",
        "--accelerator count=1",
        "--framework keras",
        "--min-nodes -1",
        "--config nowhere.yaml",
        "--config .",
        "--unknown 1",
    ],
)
def test_wrong_usage(offline: Run, flags: str) -> None:
    """The exit code is 2 and the flag is named."""
    refused = offline(f"versions create v1 --model m --origin x {flags}")

    assert refused.code == 2
    assert flags.split(maxsplit=1)[0] in refused.err


def test_updates(pilotlight: Run, model: str, models_dir: Path, tmp_path: Path) -> None:
    """Each flag changes its field, a file may too, and the rest stays."""
    pilotlight(f"versions create v1 --model {model} --origin {models_dir / 'forest'} --labels a=b")
    (tmp_path / "update.yaml").write_text(
        "description: From the file\n"
        "autoScaling: {minNodes: 1, maxNodes: 2}\n"
        "requestLoggingConfig: {bigqueryTableName: project.set.table, samplingPercentage: 0.5}\n"
    )

    def update(flags: str) -> dict[str, object]:
        result = pilotlight(f"versions update v1 --model {model} {flags} --format json")
        assert result.code == 0, result.err
        version: dict[str, object] = result.json
        return version

    first = update("--config update.yaml --max-nodes 3 --update-labels c=d")
    assert first["description"] == "From the file"
    assert first["autoScaling"] == {"minNodes": 1, "maxNodes": 3}
    assert first["labels"] == {"a": "b", "c": "d"}

    second = update("--sampling-percentage 0.25 --description Flag --min-nodes 0")
    assert second["description"] == "Flag"
    assert second["autoScaling"] == {"maxNodes": 3}
    assert second["requestLoggingConfig"] == {
        "bigqueryTableName": "project.set.table",
        "samplingPercentage": 0.25,
    }

    (tmp_path / "update.yaml").write_text("manualScaling: {nodes: 1}")
    third = update("--config update.yaml --bigquery-table-name project.set.other")
    assert third["manualScaling"] == {"nodes": 1}
    assert third["requestLoggingConfig"] == {
        "bigqueryTableName": "project.set.other",
        "samplingPercentage": 0.25,
    }

    assert pilotlight(f"versions update v1 --model {model}").code == 2
    (tmp_path / "update.yaml").write_text("labels: {a: b}")
    refused = pilotlight(f"versions update v1 --model {model} --config update.yaml")
    assert refused.code == 1
    assert "invalid fields labels" in refused.err


def test_operations(pilotlight: Run, model: str, models_dir: Path) -> None:
    """An operation can be followed by its id or its full name, and fails its wait when it failed."""
    begun = pilotlight(
        f"versions create v1 --model {model} --origin {models_dir / 'forest'} --async --format json"
    )
    name = begun.json["name"]
    waited = pilotlight(f"operations wait {name.rpartition('/')[2]} --format json")
    described = pilotlight(f"operations describe {name} --format json")
    bad = pilotlight(f"versions create v2 --model {model} --origin nowhere --async --format json").json[
        "name"
    ]
    failed = pilotlight(f"operations wait {bad}")
    listed = pilotlight("operations list")
    cancelled = pilotlight(f"operations cancel {name}")

    assert waited.json["state"] == "READY"
    assert described.json["done"] is True
    assert failed.code == 1
    assert failed.err.splitlines()[-1].startswith("ERROR: Create Version failed.")
    assert listed.out.splitlines()[0].split() == ["NAME", "OPERATION_TYPE", "DONE", "ERROR"]
    rows = {row[0]: row[1:] for row in map(str.split, listed.out.splitlines()[1:])}
    assert rows[name.rpartition("/")[2]] == ["CREATE_VERSION", "True"]
    assert rows[bad.rpartition("/")[2]][:2] == ["CREATE_VERSION", "True"]
    assert len(rows[bad.rpartition("/")[2]]) == 3
    assert cancelled.code == 0
    assert pilotlight("operations describe unknown-1").code == 1


def test_an_interrupted_wait(pilotlight: Run, server: Server, model: str, tmp_path: Path) -> None:
    """Ctrl-C ends the wait, not the operation, and says how to go on."""
    slow = models.wheel(tmp_path, "slow", "0.1", {"slow.py": SLOW})
    line = f"versions create v1 --model {model} --prediction-class slow.Slow --package-uris {slow}"
    line += f" --server {server.url}"
    with subprocess.Popen(
        [sys.executable, "-c", "from serving.cli import main; main()", *line.split()],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"Creating version v1 of model {model} ...\n"
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait() == 130

    assert "Traceback" not in rest
    [advice] = [text for text in rest.splitlines() if "To follow it: pilotlight " in text]
    waited = pilotlight(advice.partition("pilotlight ")[2] + " --format json")
    assert waited.json["state"] == "READY"
