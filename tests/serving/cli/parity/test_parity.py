"""`pilotlight parity`: online and batch prediction say the same, or where they do not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from serving.cli.parity.prediction_runs import InputRow, parse_rows, read_batch_results
from serving.cli.parity.result_comparison import RowRefusal
from serving.errors import Internal, InvalidArgument
from tests.end_to_end.models import data, write_sklearn, write_tensorflow, write_xgboost
from tests.serving.cli.conftest import Run

ROWS = data()[0].tolist()
# Two rows that no model of numbers takes, and a blank line, which is none.
BAD = '[1, "x"]\n\nnope\n'
# Answers otherwise where Beam is.
TWO_FACED = '''
import sys

class Predictor:
    """Says another thing to a batch prediction."""

    def predict(self, instances, **kwargs):
        batch = "apache_beam" in sys.modules
        if "nowhere" in instances or (batch and "only online" in instances):
            raise RuntimeError("not here")
        return [0.5 + 2**-53 if batch and row == "a bit" else 0.5 for row in instances]

    @classmethod
    def from_path(cls, model_dir):
        return cls()
'''


def lines(rows: Sequence[object]) -> str:
    """A file of rows."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_a_model_on_the_server(pilotlight: Run, forest: str) -> None:
    """The rows go through the running server both ways; standard input will do."""
    rows = lines(ROWS) + BAD + lines(ROWS[::-1])
    result = pilotlight(f"parity --model {forest} --input - --format json", rows)

    assert result.code == 0, result.err
    assert result.json == {"equal": True, "rowsEqual": 180, "rowsRefused": 2, "largestDifference": 0.0}


def test_scikit_learn_without_a_server(offline: Run, tmp_path: Path) -> None:
    """A linear model, whose numbers may change with the size of a batch, by a few bits."""
    import joblib
    from sklearn.linear_model import LinearRegression

    (tmp_path / "model").mkdir()
    rows = np.random.default_rng(5).normal(size=(500, 30))
    joblib.dump(LinearRegression().fit(rows, rows.sum(axis=1)), tmp_path / "model" / "model.joblib")
    (tmp_path / "rows.jsonl").write_text(lines(rows.tolist()))
    result = offline("parity --model-dir model --input rows.jsonl --output-path kept")

    assert (result.code, result.out) == (0, "500 rows equal (0 refused by both).\n"), result.err
    assert len(list((tmp_path / "kept" / "results").glob("prediction.results-*"))) >= 1


def test_xgboost_without_a_server(offline: Run, tmp_path: Path) -> None:
    """To the bit."""
    write_xgboost(tmp_path / "model")
    result = offline("parity --model-dir model --input -", lines(ROWS) + BAD)

    assert (result.code, result.out) == (0, "90 rows equal (2 refused by both).\n"), result.err
    assert "to the bit" not in result.err


@pytest.mark.soak
def test_another_method_without_a_server(offline: Run, tmp_path: Path) -> None:
    """In a node and in batch."""
    wanted = write_sklearn(tmp_path / "model").predict_proba(ROWS).tolist()
    flags = "--model-dir model --prediction-method predict_proba --input - --output-path kept"
    result = offline(f"parity {flags}", lines(ROWS) + BAD)

    assert (result.code, result.out) == (0, "90 rows equal (2 refused by both).\n"), result.err
    files = sorted((tmp_path / "kept" / "results").glob("prediction.results-*"))
    assert [json.loads(line) for file in files for line in file.read_text().splitlines()] == wanted


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel."""
    folder = tmp_path_factory.mktemp("saved_model")
    write_tensorflow(folder)
    return folder


def test_tensorflow_without_a_server(offline: Run, saved_model: Path) -> None:
    """Objects of outputs, of the signature that is asked for."""
    pairs = [{"n": number / 7, "s": f"text {number}"} for number in range(70)]
    flags = f"--model-dir {saved_model} --signature-name pair --input -"
    result = offline(f"parity {flags}", lines(pairs) + lines([{"n": "x", "s": "y"}]))

    assert (result.code, result.out) == (0, "70 rows equal (1 refused by both).\n"), result.err


@pytest.mark.soak
def test_tensorflow_as_the_service_had_it(offline: Run, saved_model: Path, tmp_path: Path) -> None:
    """An only output without its name, and float32 with long decimals: in a node, in batch and locally."""
    flags = f"--model-dir {saved_model} --single-output bare --long-decimals"
    rows = [["0.1", True], [0.3, 2]]
    compared = offline(f"parity {flags} --input - --output-path {tmp_path}/kept", lines(rows))
    local = offline(f"local predict {flags} --json-instances - --format json", lines(rows))

    assert (compared.code, compared.out) == (0, "2 rows equal (0 refused by both).\n"), compared.err
    (file,) = (tmp_path / "kept" / "results").glob("prediction.results-*")
    assert file.read_text() == "[0.20000000298023224,2.0]\n[0.6000000238418579,4.0]\n"
    assert local.json["predictions"] == [[0.20000000298023224, 2.0], [0.6000000238418579, 4.0]], local.err


@pytest.fixture
def two_faced(offline: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command for the custom routine, with these further flags."""
    (tmp_path / "two_faced.py").write_text(TWO_FACED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = f"--model-dir {tmp_path} --prediction-class two_faced.Predictor --input -"
    return lambda further, stdin: offline(f"parity {flags} {further}", stdin)


def test_a_custom_routine_without_a_server(two_faced: Run) -> None:
    """A row that the routine raises for is refused by both ways, and costs the others nothing."""
    result = two_faced("", lines(["one", "nowhere", {"two": [2.5, None]}]))

    assert (result.code, result.out) == (0, "2 rows equal (1 refused by both).\n"), result.err


def test_differences(two_faced: Run) -> None:
    """The first is shown with the number of its line, and the exit code is 1; one bit is enough."""
    bit = two_faced("", lines(["same"]) + "\n" + lines(["a bit", "only online"]))
    refused = two_faced("--format json", lines(["same", "only online", "a bit"]))

    assert bit.code == refused.code == 1
    assert bit.out.splitlines() == [
        "Row 3 differs; 1 before it are equal.",
        "  online: 0.5",
        "  batch:  0.5000000000000001",
    ]
    difference = refused.json["firstDifference"]
    assert (difference["row"], difference["online"]) == (2, 0.5)
    assert "RuntimeError: not here" in difference["batch"]["refused"]


def test_nothing_to_compare(offline: Run, pilotlight: Run, models_dir: Path, forest: str) -> None:
    """No rows, no good row, no such model, no model at all: a sentence, and no batch prediction."""
    folder = models_dir / "forest"
    empty = pilotlight(f"parity --model {forest} --input -", "\n")
    bad = pilotlight(f"parity --model {forest} --input -", BAD)
    unknown = pilotlight("parity --model unheard_of --input -", lines(ROWS))
    no_model = offline("parity --model-dir nowhere --input -", lines(ROWS))
    both = offline(f"parity --model {forest} --model-dir {folder} --input -", lines(ROWS))
    neither = offline("parity --input -", lines(ROWS))

    assert empty.code == bad.code == unknown.code == no_model.code == 1
    assert "no rows" in empty.err
    assert "no row is accepted online" in bad.err
    assert "unheard_of" in unknown.err
    assert "nowhere" in no_model.err.splitlines()[-1]
    assert both.code == neither.code == 2


def test_rows() -> None:
    """A row knows where it begins. Blank lines are rows only where lines are texts."""
    content = b"1\n\n \r\n[2]"

    assert parse_rows(content, text=False) == [InputRow(1, 0, b"1"), InputRow(4, 6, b"[2]")]
    assert [row.number for row in parse_rows(content, text=True)] == [1, 2, 3, 4]
    with pytest.raises(InvalidArgument, match="no rows"):
        parse_rows(b" \n", text=True)


def test_answers_from_files(tmp_path: Path) -> None:
    """Results of all shards in the order of their names stand for the rows that are not in error."""
    rows = [InputRow(1, 0, b"1"), InputRow(2, 2, b"x"), InputRow(3, 4, b"3")]
    (tmp_path / "prediction.results-00001-of-00002").write_text("30\n")
    (tmp_path / "prediction.results-00000-of-00002").write_text("10\n")
    error = {"file": "f", "offset": 2, "reason": "no", "snippet": "x"}
    (tmp_path / "prediction.errors-00000-of-00002.jsonl").write_text(json.dumps(error) + "\n")
    (tmp_path / "prediction.errors_stats-00000-of-00001").write_text("('no', 1)\n")

    assert read_batch_results(str(tmp_path), rows) == [10, RowRefusal("no"), 30]
    with pytest.raises(Internal, match="2 results and 1 errors for 2 rows"):
        read_batch_results(str(tmp_path), rows[:2])
