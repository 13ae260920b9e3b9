"""The flags that all algorithms have."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

_MOST_SPLIT = 0.4


@dataclass(frozen=True, slots=True)
class DataArguments:
    """Where the data is and what becomes of it; splits are shares of the training data."""

    training_path: str
    validation_path: str
    test_path: str
    validation_split: float
    test_split: float
    preprocess: bool
    job_dir: str


def create_parser(name: str) -> argparse.ArgumentParser:
    """A parser with the flags for data; those of the algorithm are added to it."""
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False)
    data = parser.add_argument_group("data")
    data.add_argument("--preprocess", nargs="?", const="True", default="False", choices=("True", "False"))
    data.add_argument("--training_data_path", required=True)
    data.add_argument("--validation_data_path", default="")
    data.add_argument("--test_data_path", default="")
    data.add_argument("--validation_split", type=float)
    data.add_argument("--test_split", type=float)
    data.add_argument("--job-dir", "--job_dir", required=True)
    return parser


def parse_positive_count(text: str) -> int:
    """Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more.")
    return int(text)


def parse_non_negative(text: str) -> float:
    """Raises argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of 0 or more.")
    return value


def read_data_arguments(parser: argparse.ArgumentParser, found: argparse.Namespace) -> DataArguments:
    """The flags for data; ends the program with exit code 2 if they are wrong."""
    preprocess = found.preprocess == "True"
    if not preprocess and (found.validation_split or found.test_split):
        parser.error("--validation_split and --test_split need --preprocess.")
    default = 0.0 if found.validation_data_path else 0.2
    validation = default if found.validation_split is None else found.validation_split
    test = found.test_split or 0.0
    if validation < 0 or test < 0 or validation + test > _MOST_SPLIT:
        parser.error(
            f"--validation_split {validation:g} and --test_split {test:g} must not be negative, and are "
            f"{_MOST_SPLIT:g} together at most."
        )
    return DataArguments(
        training_path=found.training_data_path,
        validation_path=found.validation_data_path,
        test_path=found.test_data_path,
        validation_split=validation,
        test_split=test,
        preprocess=preprocess,
        job_dir=found.job_dir,
    )
