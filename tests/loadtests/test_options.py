from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.options import add_options, read_run_settings
from loadtests.shapes import LoadStage
from tests.bounds import HANG_SECONDS

GIVEN = ("--model", "m", "--instances", "rows.jsonl", "--report", "out")


def parse(*arguments: str) -> argparse.Namespace:
    """Options, with what locust adds to them."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.set_defaults(num_users=None, run_time=None)
    return parser.parse_args(arguments)


def test_the_options_describe_a_run() -> None:
    """All of them; what is left out has a default."""
    run = read_run_settings(
        parse(*GIVEN, "--shape", "burst", "--rate", "200", "--wake-within", "0.5"), "http://host"
    )

    assert run.plan.stages == (LoadStage(330, 0), LoadStage(30, 200))
    assert (run.host, run.target, run.users, run.rows) == ("http://host", "projects/local/models/m", 128, 1)
    assert (run.wake_within, run.p99_within, run.ended) == (0.5, 1, None)


def test_a_version_and_a_project_can_be_named() -> None:
    """As in the address of a prediction."""
    run = read_run_settings(parse(*GIVEN, "--project", "p", "--model-version", "v"), "http://host")

    assert run.target == "projects/p/models/m/versions/v"


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "x"])
@pytest.mark.parametrize("option", ["--rate", "--step-seconds", "--idle-seconds", "--steps", "--rows"])
def test_numbers_are_checked(option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sent."""
    with pytest.raises(SystemExit):
        parse(*GIVEN, option, number)

    assert option in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["--model", "--instances", "--report"])
def test_what_is_missing_is_named(missing: str) -> None:
    """And an address is needed too."""
    with pytest.raises(ValueError, match=missing):
        read_run_settings(parse(*GIVEN, missing, ""), "http://host")
    with pytest.raises(ValueError, match="--host"):
        read_run_settings(parse(*GIVEN), None)


def test_help_tells_the_shapes_and_what_a_pass_means() -> None:
    """All that one needs to choose one."""
    command = [sys.executable, "-m", "loadtests", "--help"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=HANG_SECONDS, check=True)
    told = " ".join(done.stdout.split())

    assert "staircase: Up to the peak rate in equal steps" in told
    assert told.count("A pass:") == 4
