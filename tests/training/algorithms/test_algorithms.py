"""Built-in algorithms as jobs, and their models as versions."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.jobs import JobRun
from training.messages import ReplicaGroup, ReplicaRole, TrainingReport

# Raw rows: a number, a category, a number that is not known, and ten that do not matter.
LARGE_RED, SMALL_BLUE = [0.95, "red", None, *[1] * 10], [0.05, "blue", 3, *[1] * 10]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbers, categories and blanks; the target is a word."""
    chance = random.Random(1)
    file = tmp_path_factory.mktemp("data") / "mixed.csv"
    with file.open("w") as table:
        for _ in range(400):
            number, colour = chance.random(), chance.choice(["red", "green", "blue"])
            target = "yes" if number + (0.5 if colour == "red" else 0) > 0.7 else "no"
            known = "" if chance.random() < 0.02 else chance.randint(0, 9)
            table.write(",".join(map(str, [target, number, colour, known, *[1] * 10])) + "\n")
    return file


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chance = random.Random(2)
    file = tmp_path_factory.mktemp("data") / "numbers.csv"
    rows = [(chance.random(), chance.random()) for _ in range(400)]
    file.write_text("".join(f"{int(first + second > 1)},{first},{second}\n" for first, second in rows))
    return file


def train(folder: Path, name: str, *arguments: str, **fields: Any) -> tuple[TrainingReport, list[str]]:
    with JobRun(folder, "", module=f"training.algorithms.{name}", args=arguments, **fields) as job:
        last = job.finish()
    return last, job.lines()


def predict(folder: Path, rows: Sequence[object]) -> list[Any]:
    """What our server makes of the model."""
    instances = folder / "instances.jsonl"
    instances.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["local", "predict", "--model-dir", str(folder / "out" / "model"), "--format", "json"]
    program = [sys.executable, "-c", "from serving.cli import main; main()"]
    command = [*program, *words, "--json-instances", str(instances)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)["predictions"]
    return found


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "out/model/deployment_config.yaml").read_text())
    return found


def test_the_linear_learner_takes_raw_rows(tmp_path: Path, mixed: Path) -> None:
    arguments = ("--preprocess", "--model_type=classification", f"--training_data_path={mixed}")
    last, lines = train(tmp_path, "linear_learner", *arguments, "--test_split=0.1")

    assert last.done is not None, last
    assert any(line.startswith("accuracy: ") for line in lines)
    assert predict(tmp_path, [LARGE_RED, SMALL_BLUE]) == ["yes", "no"]
    assert config(tmp_path)["framework"] == "SCIKIT_LEARN"
    assert int(config(tmp_path)["labels"]["accuracy"]) > 80
    # 280 rows are three batches; it is solved in some passes.
    assert int(config(tmp_path)["labels"]["global_step"]) % 3 == 0
    rows = {
        file.stem: len(file.read_text().splitlines()) for file in (tmp_path / "out/processed_data").iterdir()
    }
    assert rows == {"training": 280, "validation": 80, "test": 40}


def test_the_linear_learner_takes_steps_of_batches(tmp_path: Path, numbers: Path) -> None:
    """As AI Platform's samples ask for them: too few steps learn less than enough."""
    labels = []
    for steps in ("1", "400"):
        folder = tmp_path / steps
        folder.mkdir()
        flags = (
            "--model_type=classification",
            "--batch_size=2",
            "--learning_rate=0.1",
            f"--max_steps={steps}",
        )
        last, _ = train(folder, "linear_learner", *flags, f"--training_data_path={numbers}")
        assert last.done is not None, last
        labels.append(config(folder)["labels"])

    assert [one["global_step"] for one in labels] == ["1", "400"]
    assert int(labels[0]["accuracy"]) < int(labels[1]["accuracy"]) >= 95


def test_boosted_trees_with_preprocessing_take_raw_rows(tmp_path: Path, mixed: Path) -> None:
    """A class is its place among the sorted ones, as XGBoost has it."""
    arguments = ("--preprocess", "--objective=binary:logistic", "--eta=0.3", "--num_boost_round=20")
    last, _ = train(tmp_path, "boosted_trees", *arguments, f"--training_data_path={mixed}")

    assert last.done is not None, last
    assert predict(tmp_path, [LARGE_RED, SMALL_BLUE]) == [1, 0]
    assert json.loads((tmp_path / "out/artifacts/metadata.json").read_text())["labels"] == ["no", "yes"]


def test_boosted_trees_of_several_replicas(tmp_path: Path, numbers: Path) -> None:
    """Each sees half of the rows, and all have the same model."""
    groups = (ReplicaGroup(ReplicaRole.MASTER), ReplicaGroup(ReplicaRole.WORKER))
    arguments = ("--objective", "binary:logistic", "--max_depth", "3", "--num_boost_round", "20")
    last, lines = train(
        tmp_path,
        "distributed_boosted_trees",
        *arguments,
        f"--training_data_path={numbers}",
        groups=groups,
    )

    assert last.done is not None, last
    high, low = predict(tmp_path, [[0.9, 0.9], [0.1, 0.1]])
    assert high > 0.9
    assert low < 0.1
    assert config(tmp_path)["framework"] == "XGBOOST"
    assert config(tmp_path)["labels"]["global_step"] == "20"
    accuracy = next(float(line.split()[1]) for line in lines if line.startswith("accuracy: "))
    assert accuracy > 0.9


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("linear_learner", ("--model_type=classification",), "add --preprocess"),
        ("boosted_trees", ("--objective=binary:nonsense", "--preprocess"), "Unknown objective function"),
        *(
            pytest.param(*wrong, marks=pytest.mark.soak)
            for wrong in [
                ("linear_learner", ("--model_type=regression", "--preprocess"), "is it classification?"),
                (
                    "linear_learner",
                    ("--model_type=classification", "--test_split=0.5", "--preprocess"),
                    "0.4 together",
                ),
                (
                    "linear_learner",
                    ("--model_type=regression", "--max_steps=0"),
                    "no whole number of 1 or more",
                ),
                (
                    "linear_learner",
                    ("--model_type=regression", "--learning_rate=-1"),
                    "no number of 0 or more",
                ),
                (
                    "linear_learner",
                    ("--model_type=regression", "--optimizer_type=ftrl"),
                    "unrecognized arguments: --optimizer_type=ftrl",
                ),
                ("boosted_trees", ("--objective=binary:logistic",), "add --preprocess"),
                (
                    "boosted_trees",
                    ("--objective=multi:softmax", "--preprocess", "--eta"),
                    "--eta has no value",
                ),
            ]
        ),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, mixed: Path, name: str, arguments: tuple[str, ...], message: str
) -> None:
    last, _ = train(tmp_path, name, *arguments, f"--training_data_path={mixed}")

    assert last.failed is not None
    assert message in last.failed.message
