from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from loadtests.bench.load_clients.programs import LoadProgramError, choose_program, parse_oha
from tests.loadtests.bench.stub import answering

OHA = {
    "summary": {"successRate": 1.0, "total": 2.0, "slowest": 0.4, "fastest": 0.001, "average": 0.02},
    "latencyPercentiles": {"p10": 0.001, "p50": 0.01, "p90": 0.03, "p99": 0.1, "p99.9": None},
    "statusCodeDistribution": {"200": 990, "503": 10},
    "errorDistribution": {"aborted due to deadline": 64, "connection closed": 2},
}


@pytest.fixture
def bodies(tmp_path: Path) -> Path:
    file = tmp_path / "bodies.jsonl"
    file.write_text('{"instances":[1]}\n{"instances":[2]}\n')
    return file


@pytest.mark.parametrize(
    "name", ["own", pytest.param("wrk", marks=pytest.mark.skipif(not shutil.which("wrk"), reason="no wrk"))]
)
def test_a_load_is_measured(name: str, bodies: Path) -> None:
    """Rate and latencies of what was answered, and no errors."""
    with answering(b"{}") as url:
        figures = choose_program(name, None).run_load(url, bodies, 2, 1.0 if name == "wrk" else 0.3)

    assert figures.requests > 10
    assert figures.rps == pytest.approx(figures.requests / figures.seconds, rel=0.01)
    assert 0 < figures.p50_us <= figures.p90_us <= figures.p99_us <= figures.max_us
    assert figures.errors == {}


def test_answers_with_errors_are_counted(bodies: Path) -> None:
    """By the name that wrk gives them."""
    with answering(b"{}", status=503) as url:
        figures = choose_program("own", None).run_load(url, bodies, 2, 0.1)

    assert figures.errors == {"err_status": figures.requests}


def test_a_server_that_is_not_there_has_no_figures(bodies: Path) -> None:
    """That is a failure, not a rate of zero."""
    with pytest.raises(LoadProgramError):
        choose_program("own", None).run_load("http://127.0.0.1:9/predict", bodies, 2, 0.1)


def test_figures_of_oha_are_read() -> None:
    """Seconds become microseconds; what was under way at the end of its time is no error."""
    figures = parse_oha(json.dumps(OHA))

    assert figures.requests == 1000
    assert figures.rps == 500
    assert (figures.p50_us, figures.p99_us, figures.max_us) == (10_000, 100_000, 400_000)
    assert figures.errors == {"err_status": 10, "err_read": 2}


@pytest.mark.parametrize(
    ("installed", "chosen"), [(["wrk", "oha"], "wrk"), (["oha"], "oha"), ([], "own")], ids=str
)
def test_the_best_installed_client_is_chosen(
    installed: list[str],
    chosen: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Falling back to our own is said aloud."""
    monkeypatch.setattr("shutil.which", lambda name: name if name in installed else None)

    assert choose_program("auto", None).name == chosen
    assert ("too low" in capsys.readouterr().err) == (chosen == "own")
