from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from loadtests.bench import __main__ as bench
from loadtests.bench import beyond, gateway, regression_gate, report
from loadtests.bench.load_clients.answers import HttpAsker, check_answers, read_expected
from loadtests.bench.targets import proxies
from loadtests.bench.targets.servers import (
    PROXY_SERVERS,
    SERVERS,
    ServerDefinition,
    ServerStartError,
    run_server,
)
from loadtests.bench.workloads import BenchFiles
from tests.loadtests.bench.conftest import IRIS
from tests.loadtests.bench.stub import answering

BODY = b'{"instances":[[5.1,3.5,1.4,0.2]]}'


def installed(name: str) -> bool:
    return name not in ("nginx", "haproxy") or any(
        shutil.which(name, path=path) for path in (None, "/usr/sbin")
    )


@pytest.mark.parametrize("name", ["gateway", *PROXY_SERVERS])
def test_every_server_answers_and_leaves_nothing(
    name: str, material: BenchFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It predicts as the library does, tells what it uses, and leaves no process and no file."""
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    server = (SERVERS | PROXY_SERVERS)[name]
    # Short, because sockets lie in it.
    with tempfile.TemporaryDirectory() as scratch:
        monkeypatch.setenv("TMPDIR", scratch)
        with run_server(
            server, "iris", material.model_dir("iris"), BODY, core=None, limit=60, logs=tmp_path
        ) as running:
            assert (
                check_answers(
                    running.url, read_expected(material.bodies_file(IRIS), material.answers_file(IRIS))
                )
                == ""
            )
            usage = running.measure_usage()
            group = running._group

        assert usage is not None
        assert usage.processes >= 1
        assert usage.rss_mib >= usage.pss_mib > 10
        assert running.front_cpu_seconds() == 0
        assert running._front
        assert group is not None
        assert group.list_pids() == []
        assert not [one.name for one in Path(scratch).glob("pilotlight-bench-*")]


def test_a_server_that_runs_already_is_only_asked(tmp_path: Path) -> None:
    """A URL instead of a command."""
    with answering(b"{}") as url:
        server = ServerDefinition("mine", url)
        with run_server(server, "iris", tmp_path, BODY, core=None, limit=1, logs=tmp_path) as running:
            running.wait_until_idle(60)
            asker = HttpAsker(running.url)
            assert asker.post(BODY) == (200, b"{}")
            asker.close()

    assert running.measure_usage() is None
    assert running.start_seconds is None


@pytest.mark.parametrize("code", ["print(1)", "import time; time.sleep(60)"])
def test_a_server_that_does_not_start_is_told_with_its_last_words(code: str, tmp_path: Path) -> None:
    """One that ends, and one that never answers."""
    server = ServerDefinition("mine", f"{sys.executable} -c '{code}'")

    with (
        pytest.raises(ServerStartError, match="no answer"),
        run_server(server, "iris", tmp_path, BODY, core=None, limit=0.5, logs=tmp_path),
    ):
        pass


def test_the_whole_benchmark(material: BenchFiles, tmp_path: Path) -> None:
    """A short run beside a server that is wrong: rows, tables, progress, and the exit code of trouble."""
    out = tmp_path / "results.jsonl"
    command = [
        *(
            sys.executable,
            "-m",
            "loadtests.bench",
            "--servers",
            "echo",
            "--workloads",
            "W1",
            "--client",
            "own",
        ),
        *("--rounds", "1", "--seconds", "0.1", "--warm-up", "0.1", "--connections", "1,2"),
        *("--folder", str(material.folder), "--out", str(out)),
    ]
    with answering(b'{"predictions":[0]}') as url:
        command += ["--beside", f"mine={url}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stderr
    assert "### latencies" in done.stdout
    assert "WRONG: mine, W1" in done.stdout
    assert "WRONG: echo" not in done.stdout
    assert "round 1 of 1, iris, echo" in done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["peer"], row.get("conns")) for row in rows] == [
        *(("echo", 1), ("echo", 2), ("echo", None), ("mine", 1), ("mine", 2)),
    ]


@pytest.mark.parametrize(
    "options", [["--workloads", "W9"], ["--servers", "none"], ["--beside", "mine"]], ids=" ".join
)
def test_what_is_unknown_is_wrong_usage(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names it."""
    monkeypatch.setattr(sys, "argv", ["bench", *options])

    assert bench.main() == 2
    assert repr(options[1]) in capsys.readouterr().err


@pytest.mark.parametrize(
    "module", [bench, beyond, gateway, regression_gate, proxies, report], ids=lambda one: one.__name__
)
def test_help_teaches(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command says how it is called."""
    monkeypatch.setattr(sys, "argv", ["bench", "--help"])

    with pytest.raises(SystemExit) as ended:
        module.main()

    assert ended.value.code == 0
    assert f"python -m {module.__name__.removesuffix('.__main__')}" in capsys.readouterr().out
