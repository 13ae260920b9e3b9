"""`pilotlight local train`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.bounds import HANG_SECONDS
from tests.training.jobs import is_alive

PROGRAM = """
    import glob, json, os, sys, time
    import hypertune
    config = json.loads(os.environ["TF_CONFIG"])
    print(json.dumps([os.getcwd(), sys.argv[1:], config]), flush=True)
    kind = config["task"].get("type")
    open(f"said-{os.getpid()}", "w").close()
    if "--peers" in sys.argv and kind == "chief":
        while len(glob.glob("said-*")) < int(sys.argv[-1]):
            time.sleep(0.01)
    if kind == "ps":
        time.sleep(600)
    if "--fail" in sys.argv and kind in (None, "chief"):
        sys.exit(7)
    if "--wait" in sys.argv:
        time.sleep(600)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "trainer"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "task.py").write_text(dedent(PROGRAM))
    return folder


def command(package: Path, *words: str) -> list[str]:
    fixed = ("--module-name", "trainer.task", "--package-path", str(package))
    return [sys.executable, "-c", "from serving.cli import main; main()", "local", "train", *fixed, *words]


def train(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = command(package, *words)
    return subprocess.run(done, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)


def test_one_process_runs_as_a_job_would(package: Path) -> None:
    done = train(package, "--job-dir", "out", "--worker-count", "3", "--", "--epochs", "2")

    assert done.returncode == 0, done.stderr
    folder, arguments, config = json.loads(done.stdout)
    assert folder == str(package.parent)
    assert arguments == ["--epochs", "2", "--job-dir", "out"]
    assert config["job"] == {"job_name": "trainer.task", "args": arguments}
    assert config["cluster"] == config["task"] == {}
    assert "with --distributed only" in done.stderr


def test_the_exit_code_is_that_of_the_program(package: Path) -> None:
    assert train(package, "--", "--fail").returncode == 7
    assert train(package, "--distributed", "--", "--fail").returncode == 7


def test_a_cluster_has_its_ports_in_order(package: Path) -> None:
    flags = ("--distributed", "--start-port", "4000", "--evaluator-count", "1")
    done = train(package, *flags, "--", "--peers", "6")  # the end of the chief ends the others

    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert set(said) == {
        "master-replica-0", "worker-replica-0", "worker-replica-1", "ps-replica-0", "ps-replica-1",
        "evaluator-replica-0",
    }  # fmt: skip
    config = json.loads(said["worker-replica-1"])[2]
    assert config["task"] == {"type": "worker", "index": 1}
    ports = {
        role: [int(one.rpartition(":")[2]) for one in config["cluster"][role]] for role in config["cluster"]
    }
    assert ports == {"chief": [4000], "ps": [4001, 4002], "worker": [4003, 4004]}


def test_an_interrupt_ends_all(package: Path) -> None:
    words = command(package, "--distributed", "--worker-count", "1", "--", "--wait")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        for _ in range(4):
            running.stdout.readline()
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(running.pid, signal.SIGINT)

        assert running.wait(HANG_SECONDS) == 128 + signal.SIGINT
    assert len(children) == 4
    assert not any(is_alive(int(pid)) for pid in children)


def test_a_signal_that_ends_the_command_ends_the_program(package: Path) -> None:
    words = command(package, "--", "--wait")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        (child,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(running.pid, signal.SIGTERM)

        assert running.wait(HANG_SECONDS) == 128 + signal.SIGTERM
    assert not is_alive(int(child))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--distributed", "--start-port", "65533"), "ports 65533 to 65537"),
        (("--distributed", "--worker-count", "100000"), "less than or equal to 1000"),
        (("--worker-count", "-1"), "greater than or equal to 0"),
        (("--python", "/no/python"), "/no/python"),
    ],
)
def test_what_cannot_be_run_is_said(package: Path, words: tuple[str, ...], message: str) -> None:
    done = train(package, *words)

    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_missing_is_named(package: Path) -> None:
    done = train(package / "none")

    assert done.returncode == 1
    assert f"there is no folder {package / 'none'}" in done.stderr


def test_the_first_job_of_the_document_leaves_a_model(tmp_path: Path) -> None:
    text = Path(__file__).parents[4].joinpath("docs/training.md").read_text()
    script, _, rest = text.split("```\n")[1].partition("pilotlight node")
    folders = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert rest.split() == ["--model-dir", "out/model"]
    assert (tmp_path / "out/model/model.joblib").is_file()
