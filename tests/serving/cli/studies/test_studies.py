"""`pilotlight studies`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.serving.cli.conftest import Run

CONFIG = """
metrics: [{metric: loss, goal: MINIMIZE}]
parameters:
- {parameter: depth, type: INTEGER, integerValueSpec: {minValue: 0, maxValue: 1}}
- parameter: kind
  type: CATEGORICAL
  categoricalValueSpec: {values: [tree, linear]}
  childParameterSpecs:
  - parameter: rate
    type: DISCRETE
    discreteValueSpec: {values: [0.5]}
    parentCategoricalValues: {values: [linear]}
algorithm: GRID_SEARCH
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A file with what a study needs, in the current folder."""
    file = tmp_path / "study.yaml"
    file.write_text(CONFIG)
    return file


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.usefixtures("config")
def test_a_study_from_its_creation_to_its_end(pilotlight: Run) -> None:
    """What is suggested is measured and completed; tables have a column for each metric and parameter."""
    created = pilotlight("studies create life --config study.yaml")
    listed = pilotlight("studies list --filter name:life")
    suggested = pilotlight("studies suggest life --client-id me --count 2")
    measured = pilotlight("studies add-measurement life 1 --metric loss=0.5 --step 3 --elapsed 1.5")
    checked = pilotlight("studies check-early-stopping life 1")
    stopped = pilotlight("studies stop life 1")
    stopping = pilotlight("studies check-early-stopping life 1")
    completed = pilotlight("studies complete life 1")
    refused = pilotlight("studies complete life 2 --infeasible 'out of memory'")
    trials = pilotlight("studies trials life")
    optimal = pilotlight("studies optimal life --format json").json
    deleted = pilotlight("studies delete life --quiet")

    assert (created.code, created.out) == (0, ""), created.err
    assert created.err.startswith("Created study life. For the first trial: pilotlight studies suggest life")
    assert lines(listed.out)[1][:5] == ["life", "ACTIVE", "loss", "(minimize)", "depth,"]
    assert lines(suggested.out) == [
        ["TRIAL", "STATE", "loss", "depth", "kind", "rate"],
        ["1", "ACTIVE", "0", "tree"],
        ["2", "ACTIVE", "0", "linear", "0.5"],
    ]
    assert measured.err == "Added a measurement to trial 1.\n"
    assert (checked.out, stopping.out) == ("false\n", "true\n")
    assert stopped.err == "Asked for trial 1 to be stopped.\n"
    assert completed.err == "Completed trial 1.\n"
    assert refused.code == 0, refused.err
    assert lines(trials.out)[1:] == [
        ["1", "COMPLETED", "0.5", "0", "tree"],
        ["2", "INFEASIBLE", "0", "linear", "0.5"],
    ]
    assert [trial["finalMeasurement"]["elapsedTime"] for trial in optimal] == ["1.5s"]
    assert deleted.err == "Deleted study life.\n"
    assert pilotlight("studies describe life").code == 1


def test_a_study_may_be_json_and_elsewhere(pilotlight: Run, tmp_path: Path) -> None:
    """A whole study is read too; --region and full names say where it is."""
    parameter = {"parameter": "x", "type": "DISCRETE", "discreteValueSpec": {"values": [1, 2]}}
    study = {"studyConfig": {"metrics": [{"metric": "loss"}], "parameters": [parameter]}}
    (tmp_path / "study.json").write_text(json.dumps(study))
    full = "projects/local/locations/europe-west1/studies/far"

    created = pilotlight(f"studies create {full} --config study.json --format json")
    described = pilotlight("studies describe far --region europe-west1 --format json")

    assert created.code == 0, created.err
    assert described.json == created.json
    assert described.json["name"] == full
    assert pilotlight("studies describe far").code == 1
    assert lines(pilotlight("studies list --region europe-west1").out)[1][0] == "far"


@pytest.mark.usefixtures("config")
def test_a_used_up_study_ends_with_exit_code_1(pilotlight: Run) -> None:
    pilotlight("studies create small --config study.yaml")
    pilotlight("studies suggest small --client-id me --count 100")

    result = pilotlight("studies suggest small --client-id other")

    assert (result.code, result.out) == (1, "")
    assert "nothing new to suggest" in result.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("add-measurement s 1", "at least one --metric"),
        ("add-measurement s 1 --metric loss", "KEY=VALUE"),
        ("add-measurement s 1 --metric loss=low", "'low' is no number"),
        ("complete s 1 --metric loss=1 --infeasible bad", "not both"),
        ("stop s one", "valid integer"),
        ("create s --config none.yaml", "no file none.yaml"),
    ],
)
def test_wrong_usage(offline: Run, line: str, said: str) -> None:
    result = offline(f"studies {line}")

    assert result.code == 2
    assert said in result.err


def test_a_file_that_is_no_study_is_refused(pilotlight: Run, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "empty.yaml").write_text("metrics: []")

    assert "must hold a mapping" in pilotlight("studies create s --config list.yaml").err
    assert "study.study_config.parameters" in pilotlight("studies create s --config empty.yaml").err
