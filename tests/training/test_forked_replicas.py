"""Supervisors and replicas that are forked from a pilot."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pytest

from autoscaler.node_process import LaunchSpec
from autoscaler.pools import PilotSpec
from autoscaler.pools.local_pool import LocalPool
from autoscaler.supervision import Supervisor
from serving.gateway.control.pilot_specs import framework_pilot_spec
from tests.training.jobs import read_log
from training.messages import TrainingReport, TrainingRequest

PRELOADED = "tests.training.preloaded"
# In which a pilot forks the next spare: jobs rarely come faster.
_SPARE_SECONDS = 0.5


def make_request(folder: Path, source: str, **fields: Any) -> TrainingRequest:
    """A job whose program has this source text."""
    modules = folder / "modules"
    modules.mkdir(parents=True)
    (modules / "trainer.py").write_text(dedent(source))
    return TrainingRequest(
        job="job_1",
        uid="1",
        module="trainer",
        environment={"PATH": os.environ["PATH"], "PYTHONPATH": str(modules)},
        scratch_dir=str(folder / "scratch"),
        log_dir=str(folder / "log"),
        cache_dir=str(folder / "cache"),
        cache_bytes=1 << 30,
        **fields,
    )


def run_forked(folder: Path, source: str, **fields: Any) -> tuple[TrainingReport, dict[str, list[str]]]:
    """Run a job; returns its last report, and the lines of each task."""
    spec = PilotSpec("test", ("training.supervisor", PRELOADED), {**os.environ, "TF_CPP_X": "1"})
    request = make_request(folder, source, **fields)
    ((_, report),) = asyncio.run(fork_supervisors(spec, [request], folder / "output"))
    assert (folder / "output").read_text() == ""
    lines: dict[str, list[str]] = {}
    for entry in read_log(folder / "log"):
        lines.setdefault(entry.task, []).append(entry.text)
    return report, lines


async def fork_supervisors(
    spec: PilotSpec, requests: Sequence[TrainingRequest], output: Path
) -> list[tuple[float, TrainingReport]]:
    """Run jobs one after the other; returns when each was asked for, and its last report."""
    found = []
    async with Supervisor() as tasks:
        pool = LocalPool(lambda _: None, drain=1.0, supervisor=tasks, starts=1)
        with output.open("wb") as file:
            async with pool:
                pool.set_wanted_pilots([spec])
                await pool.wait_for_pilots(60.0)
                for request in requests:
                    await asyncio.sleep(_SPARE_SECONDS)
                    begin = time.time()
                    found.append((begin, await run_request(pool, spec, request, file.fileno())))
    return found


async def run_request(
    pool: LocalPool, spec: PilotSpec, request: TrainingRequest, output: int
) -> TrainingReport:
    launch = LaunchSpec(
        "training.supervisor:start",
        {"request": msgspec.to_builtins(request)},
        dict(os.environ),
        watches_lifeline=True,
    )
    async with pool.run_forked(spec, launch, output=output, grace_seconds=20) as child:
        assert child is not None
        async for line in child.output:
            report = msgspec.json.decode(line, type=TrainingReport)
            if report.done or report.failed:
                return report
    raise AssertionError("it ended without a result")


def test_a_fork_runs_as_python_m_does(tmp_path: Path) -> None:
    source = """
        import sys
        loaded = "tests.training.preloaded" in sys.modules
        import atexit, json, os, signal, threading, time
        print(json.dumps([loaded, __name__, __spec__.name, os.path.basename(sys.argv[0]), sys.argv[1:]]))
        print(json.dumps([os.listdir(), sys.path[0] == os.getcwd(), sys.modules["__main__"].MARK == 1]))
        files = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
        print(json.dumps([signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, files]))
        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    """.replace("import sys\n", "import sys\n        MARK = 1\n", 1)
    report, lines = run_forked(tmp_path, source, args=("--steps", "3"))

    assert report.done is not None
    first, second, third, *rest = lines["master-replica-0"]
    assert json.loads(first) == [True, "__main__", "trainer", "trainer.py", ["--steps", "3"]]
    assert json.loads(second) == [[], True, True]
    default, files = json.loads(third)
    assert default
    # That of the listing is closed again.
    opened = [n for n, path in files.items() if not path.endswith(("/dev/null", "/fd", f"/fd/{n}"))]
    assert sorted(opened) == ["1", "2", "3"]  # standard streams and lifeline
    assert rest == ["thread", "at exit"]


def test_files_that_are_left_open_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    source = f"""
        import atexit, gzip, io

        plain = open({str(folder / "plain")!r}, "w")
        plain.write("plain")
        packed = gzip.open({str(folder / "packed")!r}, "wt")
        packed.write("packed")
        late = open({str(folder / "late")!r}, "wb")
        atexit.register(late.write, b"late")
        rows = io.TextIOWrapper(io.BufferedWriter(io.FileIO({str(folder / "rows")!r}, "w")))
        rows.write("rows")
    """
    report, _ = run_forked(tmp_path, source)

    assert report.done is not None
    assert gzip.decompress((folder / "packed").read_bytes()) == b"packed"
    assert {name: (folder / name).read_text() for name in ("plain", "late", "rows")} == {
        "plain": "plain",
        "late": "late",
        "rows": "rows",
    }


def test_exit_codes_are_real(tmp_path: Path) -> None:
    for number, (source, code) in enumerate(
        [("import sys; sys.exit(3)", 3), ("raise SystemExit('no data')", 1), ("1 / 0", 1)]
    ):
        report, lines = run_forked(tmp_path / str(number), source)

        assert report.failed is not None
        assert f"status of {code}" in report.failed.message
    assert lines["master-replica-0"][0] == "Traceback (most recent call last):"
    assert lines["master-replica-0"][-1] == "ZeroDivisionError: division by zero"
    assert not any("forked_program" in line for line in lines["master-replica-0"])


def test_processes_of_the_program_find_its_modules(tmp_path: Path) -> None:
    source = """
        import multiprocessing

        def square(x):
            return x * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [3]))
    """
    report, lines = run_forked(tmp_path, source)

    assert report.done is not None, report
    assert lines["master-replica-0"] == ["[9]"]


def test_variables_that_are_read_early_need_a_new_interpreter(tmp_path: Path) -> None:
    source = "import sys; print('tests.training.preloaded' in sys.modules)"
    _, same = run_forked(tmp_path / "same", source, variables={"TF_CPP_X": "1", "MINE": "2"})
    _, other = run_forked(tmp_path / "other", source, variables={"TF_CPP_X": "2"})

    assert same["master-replica-0"] == ["True"]
    assert other["master-replica-0"] == ["False"]
    assert "TF_CPP_X" in " ".join(other["service"])


def test_a_program_may_fork_with_any_descriptors(tmp_path: Path) -> None:
    """Libraries that the pilot has used close, in every fork, descriptors that they once had."""
    source = """
        import os
        files = [open("/dev/zero") for _ in range(40)]
        if not (pid := os.fork()):
            print(all(os.path.realpath(f"/proc/self/fd/{file.fileno()}") == "/dev/zero" for file in files))
            os._exit(0)
        os.waitpid(pid, 0)
    """
    report, lines = run_forked(tmp_path, source)

    assert report.done is not None, report
    assert lines["master-replica-0"] == ["True"]


BOOSTER = """
    import sys, numpy, xgboost
    loaded = "tensorflow" in sys.modules
    rows = numpy.arange(40.0).reshape(-1, 1)
    booster = xgboost.train({"nthread": 2}, xgboost.DMatrix(rows, rows.ravel()), 5)
    print(loaded, booster.predict(xgboost.DMatrix(rows)).shape)
"""
NETWORK = """
    import sys
    loaded = "xgboost" in sys.modules
    import tensorflow as tf
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(loss="mse")
    model.fit(tf.ones((8, 2)), tf.ones((8, 1)), verbose=0)
    print(loaded, model.predict(tf.ones((3, 2)), verbose=0).shape)
"""


@pytest.mark.parametrize(
    ("framework", "source", "line"),
    [
        ("TENSORFLOW", BOOSTER, "True (40,)"),
        pytest.param("SCIKIT_LEARN", NETWORK, "True (3, 1)", marks=pytest.mark.soak),
    ],
)
def test_a_fork_of_another_frameworks_pilot(tmp_path: Path, framework: str, source: str, line: str) -> None:
    """Its program imports what it needs itself: of packages in a bucket nobody knows which pilot suits."""
    pytest.importorskip("tensorflow")
    request = make_request(tmp_path, source)
    spec = framework_pilot_spec(framework, "", dict(os.environ))

    ((_, report),) = asyncio.run(fork_supervisors(spec, [request], tmp_path / "output"))

    assert report.done is not None, report
    lines = [one.text for one in read_log(Path(request.log_dir)) if one.task == "master-replica-0"]
    assert lines[-1] == line


@pytest.mark.alone
@pytest.mark.parametrize(("framework", "seconds"), [("SCIKIT_LEARN", 0.3), ("TENSORFLOW", 0.5)])
def test_the_first_line_comes_at_once(
    tmp_path: Path, report: Callable[[str], None], framework: str, seconds: float
) -> None:
    """Of a program whose framework is imported already, from the moment at which the job is started."""
    spec = framework_pilot_spec(framework, "", dict(os.environ))
    source = "import time; print(time.time(), time.process_time())"
    requests = [make_request(tmp_path / str(number), source) for number in range(11)]
    ended = asyncio.run(fork_supervisors(spec, requests, tmp_path / "output"))
    waits, busy = [], []
    for request, (begin, last) in zip(requests, ended, strict=True):
        assert last.done is not None, last
        line = next(one.text for one in read_log(Path(request.log_dir)) if one.task == "master-replica-0")
        waits.append(float(line.split()[0]) - begin)
        busy.append(float(line.split()[1]))

    median = statistics.median(waits)
    report(
        f"first line of a training program, {framework}: {median * 1000:.0f} ms after the start, of which "
        f"{statistics.median(busy) * 1000:.0f} ms are computed in the replica"
    )
    assert median <= seconds
