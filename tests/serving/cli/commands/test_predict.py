"""`pilotlight predict` and `pilotlight local predict`: what they have in common, and what not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import joblib
import numpy as np
import pytest

from tests.end_to_end.models import archive, data
from tests.serving.cli.conftest import PREDICTOR, Run

ROWS = data()[0][:5].tolist()


@pytest.fixture(scope="session")
def expected(models_dir: Path) -> list[int]:
    """What the library says about the rows."""
    predictions: list[int] = joblib.load(models_dir / "forest" / "model.joblib").predict(ROWS).tolist()
    return predictions


@pytest.fixture(params=["server", "local"])
def predict(request: pytest.FixtureRequest, pilotlight: Run, forest: str, models_dir: Path) -> Run:
    """Runs one of the two commands with these further flags."""
    command = {
        "server": f"predict --model {forest}",
        "local": f"local predict --model-dir {models_dir / 'forest'}",
    }[request.param]
    return lambda flags, stdin="": pilotlight(f"{command} {flags}", stdin)


def lines(rows: Sequence[object]) -> str:
    """A file of instances."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_json_lines(predict: Run, expected: list[int], tmp_path: Path) -> None:
    """One instance per line in, the list of predictions out, as gcloud prints it."""
    (tmp_path / "rows.jsonl").write_text(lines(ROWS))
    result = predict("--json-instances rows.jsonl")

    assert result.code == 0
    assert result.out == f"{expected}\n"
    assert result.err == ""


def test_an_array(predict: Run, expected: list[int], tmp_path: Path) -> None:
    """An array as numpy.save writes it goes as it is; from standard input too."""
    np.save(tmp_path / "rows.npy", np.array(ROWS))
    content = (tmp_path / "rows.npy").read_bytes()

    assert predict("--npy rows.npy").out == f"{expected}\n"
    assert predict("--npy -", content).out == f"{expected}\n"
    refused = predict("--npy -", "[1]")
    assert (refused.code, refused.out) == (1, "")
    assert "no array as np.save writes it" in refused.err


def test_standard_input_and_json(predict: Run, expected: list[int]) -> None:
    """`-` is standard input, with or without a mark at its start and an end to its last line."""
    text = lines(ROWS)
    for stdin in (text, text.strip(), "\ufeff" + text, text.replace("\n", "\r\n")):
        result = predict("--json-instances - --format json", stdin)
        assert result.json == {"predictions": expected}


def test_more_than_a_hundred(predict: Run, expected: list[int]) -> None:
    """gcloud's limit does not hold here."""
    result = predict("--json-instances -", lines(ROWS * 50))

    assert result.out == f"{expected * 50}\n"


def test_a_whole_request(predict: Run, expected: list[int], tmp_path: Path) -> None:
    """A request is sent as it is, its other fields too."""
    (tmp_path / "request.json").write_text(json.dumps({"instances": ROWS}, indent=1))
    right = predict("--json-request request.json --format json")
    (tmp_path / "request.json").write_text(json.dumps({"instances": ROWS, "unheard_of": 1}))
    wrong = predict("--json-request request.json")

    assert right.json == {"predictions": expected}
    assert wrong.code == 1
    assert "unheard_of" in wrong.err


def test_text_lines(predict: Run) -> None:
    """Lines are sent as strings, which this model refuses."""
    result = predict("--text-instances -", "1,2,3,4\n")

    assert result.code == 1
    assert result.err.startswith("ERROR: Invalid inputs: ")
    assert "string" in result.err


@pytest.mark.parametrize(
    ("flags", "stdin", "problem"),
    [
        ("--json-instances -", "[1]\n\n[2]\n", "Standard input, line 2: an empty line"),
        ("--json-instances -", "[1]\n\n", "Standard input, line 2: an empty line"),
        ("--text-instances -", "a\n\nb\n", "Standard input, line 2: an empty line"),
        ("--json-instances -", "[1]\n[1,\n", "Standard input, line 2: not a JSON value"),
        ("--json-instances -", "[NaN]\n", "line 1: not a JSON value"),
        ("--json-instances -", "", "there are no instances"),
        ("--json-request -", "[1]", "a request is a JSON object"),
        ("--json-request -", "{", "not JSON"),
        ("--text-instances -", b"\xff\n", "not UTF-8"),
    ],
)
def test_instances_that_cannot_be_read(offline: Run, flags: str, stdin: str | bytes, problem: str) -> None:
    """The place of the problem is named, before any server is asked."""
    result = offline(f"predict --model m {flags}", stdin)

    assert result.code == 1
    assert result.err.startswith("ERROR: ")
    assert problem in result.err


@pytest.mark.parametrize(
    "flags",
    ["", "--json-instances - --text-instances -", "--json-instances nowhere", "--npy - --signature-name s"],
)
def test_exactly_one_file(offline: Run, flags: str) -> None:
    """None, two, or one that is not there is wrong usage."""
    assert offline(f"predict --model m {flags}").code == 2
    assert offline(f"local predict --model-dir d {flags}").code == 2


def test_versions_and_names(pilotlight: Run, forest: str, expected: list[int]) -> None:
    """The version can be named; one that is not there is refused."""
    named = pilotlight(f"predict --model {forest} --version v1 --json-instances -", lines(ROWS))
    missing = pilotlight(f"predict --model {forest} --version v9 --json-instances -", lines(ROWS))

    assert named.out == f"{expected}\n"
    assert missing.code == 1
    assert "v9" in missing.err


def test_a_custom_routine(pilotlight: Run, models_dir: Path, tmp_path: Path) -> None:
    """Objects are a table. Locally too: gcloud refused, ours serves; what it prints stays out of the way."""
    pilotlight("models create routine")
    # Its content is its own: what is kept of another would not be installed anew.
    package = tmp_path / "routine.tar.gz"
    package.write_bytes(archive("cli_routine", {"cli_routine": f"{PREDICTOR}\n# {tmp_path}\n"}))
    code = f"--prediction-class cli_routine.Predictor --package-uris {package}"
    created = pilotlight(f"versions create v1 --model routine --origin {models_dir / 'forest'} {code}")
    table = pilotlight("predict --model routine --text-instances -", "one\ntwo words\n")
    failed = pilotlight("predict --model routine --text-instances -", "raise\n")
    request = json.dumps({"instances": ["one", [2]], "extra": True})
    flags = "--json-request - --signature-name s --format json"
    remote = pilotlight(f"predict --model routine {flags}", request)
    local = pilotlight(f"local predict --model-dir {models_dir / 'forest'} {code} {flags}", request)

    assert created.code == 0, created.err
    assert "INSTALLING" in created.err
    assert [line.split() for line in table.out.splitlines()] == [
        ["MORE", "VALUE"],
        ["{}", "one"],
        ["{}", "two", "words"],
    ]
    assert (failed.code, failed.out) == (1, "")
    assert "RuntimeError: refused" in failed.err.splitlines()[-1]
    extra = {"extra": True, "signature_name": "s"}
    assert remote.json == {"predictions": [{"value": "one", "more": extra}, {"value": [2], "more": extra}]}
    assert local.json == remote.json
    assert "printed by the model" in local.err


def test_a_local_folder_that_is_no_model(offline: Run, tmp_path: Path) -> None:
    """Loading says what is missing; a folder that is not there goes before instances that are not."""
    (tmp_path / "notes.txt").write_text("no model")
    empty = offline(f"local predict --model-dir {tmp_path} --json-instances -", "[1]\n")
    missing = offline("local predict --model-dir nowhere --json-instances -", "")
    file = offline(f"local predict --model-dir {tmp_path}/notes.txt --json-instances -", "[1]\n")

    assert (empty.code, missing.code, file.code) == (1, 1, 1)
    assert "notes.txt" in empty.err
    assert missing.err == (
        f"ERROR: There is no model folder {Path.cwd()}/nowhere: it does not exist. --model-dir takes the "
        "folder that holds the model's file.\n"
    )
    assert "notes.txt: it is a file" in file.err


def test_a_local_folder_by_its_uri(
    offline: Run, models_dir: Path, expected: list[int], tmp_path: Path
) -> None:
    """A URI is fetched first; that is told on stderr only."""
    flags = f"--model-dir file://{models_dir / 'forest'} --framework scikit-learn --json-instances -"
    result = offline(f"local predict {flags}", lines(ROWS))

    assert result.out == f"{expected}\n"
    assert "Fetching" in result.err


def test_another_method_of_the_model(offline: Run, models_dir: Path) -> None:
    """As of the library; one that the model has not is named."""
    wanted = joblib.load(models_dir / "forest" / "model.joblib").predict_proba(ROWS).tolist()
    model = f"--model-dir {models_dir / 'forest'}"

    local = offline(
        f"local predict {model} --prediction-method predict_proba --json-instances - --format json",
        lines(ROWS),
    )
    wrong = offline(f"local predict {model} --prediction-method transform --json-instances -", lines(ROWS))

    assert local.json == {"predictions": wanted}, local.err
    assert (wrong.code, wrong.out) == (1, "")
    assert "no transform method" in wrong.err


@pytest.mark.soak
def test_another_method_in_batch(offline: Run, models_dir: Path, tmp_path: Path) -> None:
    """As of the library, to the bit."""
    wanted = joblib.load(models_dir / "forest" / "model.joblib").predict_proba(ROWS).tolist()
    (tmp_path / "rows.jsonl").write_text(lines(ROWS))

    done = offline(
        f"local batch --model-dir {models_dir / 'forest'} --prediction-method predict_proba "
        "--input-paths rows.jsonl --output-path out"
    )

    assert done.code == 0, done.err
    files = sorted((tmp_path / "out").glob("prediction.results-*"))
    assert [json.loads(line) for file in files for line in file.read_text().splitlines()] == wanted
