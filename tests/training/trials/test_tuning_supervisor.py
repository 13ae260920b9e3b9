"""Trials of a tuning job: what they find, their metrics, and every end they have."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.bounds import HANG_SECONDS
from tests.training.jobs import is_alive
from tests.training.trials.tuning_runs import MASTER, TuningRun
from training.messages import ReplicaGroup, ReplicaRole, RestartLimits

REPORT = """
    import argparse, os, sys, hypertune

    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float)
    parser.add_argument("--job-dir")
    args = parser.parse_args()
    hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", args.rate * 2, 3)
"""
WAIT = """
    import os, sys, time, hypertune

    tuner = hypertune.HyperTune()
    step = 0
    while True:
        step += 1
        tuner.report_hyperparameter_tuning_metric("accuracy", step, step)
        print(f"pid {os.getpid()}", flush=True)  # in one part: a stop may come between two
        time.sleep(0.1)
"""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + HANG_SECONDS
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_trial_has_its_value(tmp_path: Path) -> None:
    with TuningRun(tmp_path, REPORT) as job:
        job.start_trial(1, "--rate=0.25")
        report = job.wait_for_end(1)
        job.finish_trials()
        last = job.finish()

    assert report.final is not None
    assert (report.final.step, report.final.value) == (3, 0.5)
    # On a busy machine a look at the file finds the value before the trial's end.
    points = [point for one in job.seen if one.trial is not None for point in one.trial.points]
    assert [(one.step, one.value) for one in points] == [(3, 0.5)]
    assert last.done is not None
    assert last.done.replica_seconds > 0


def test_a_value_with_an_infinite_time_counts(tmp_path: Path) -> None:
    source = """
        import os

        with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
            file.write('{"timestamp": "inf", "trial": "1", "accuracy": "0.5", "global_step": "3"}')
    """
    with TuningRun(tmp_path, source) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is not None
    assert report.final.value == 0.5
    assert 0 <= report.final.elapsed_seconds < HANG_SECONDS


@pytest.mark.parametrize("tag", ["\\ud800", "t" * 50_000], ids=["surrogate", "long"])
def test_tags_in_the_reason_of_a_failure_can_be_read(tag: str, tmp_path: Path) -> None:
    source = f"""
        import os

        with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
            for number in range(10):
                file.write('{{"' + {tag!r} + str(number) + '": "0.5"}}' + chr(10))
    """
    with TuningRun(tmp_path, source) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert not report.lost
    assert f'Tags seen: "{tag[:50]}' in report.failure
    assert len(report.failure) < 6_001


def test_what_a_trial_finds(tmp_path: Path) -> None:
    """Its arguments are behind the user's, its folder and number are its own."""
    source = """
        import json, os, sys

        config = json.loads(os.environ["TF_CONFIG"])
        print(sys.argv[1:])
        print(os.environ["CLOUD_ML_TRIAL_ID"], os.environ["CLOUD_ML_HP_METRIC_TAG"], config["task"]["trial"])
        print(os.path.basename(os.path.dirname(os.environ["CLOUD_ML_HP_METRIC_FILE"])), os.listdir("."))
    """
    with TuningRun(tmp_path, source, args=("--rate=1", "--epochs=3")) as job:
        job.start_trial(7, "--rate=0.5", "--name=a b")
        job.wait_for_end(7)
        job.finish_trials()
        job.finish()
        lines = [entry for entry in job.entries() if entry.task == "master-replica-0"]

    folder = str(job.job_dir / "7")
    assert [line.text for line in lines] == [
        str(["--rate=1", "--epochs=3", "--rate=0.5", "--name=a b", "--job-dir", folder]),
        "7 accuracy 7",
        "metrics []",
    ]
    assert {line.trial for line in lines} == {"7"}
    assert Path(folder).is_dir()


def test_trials_run_side_by_side_and_one_after_the_other(tmp_path: Path) -> None:
    with TuningRun(tmp_path, REPORT, slots=(MASTER, MASTER)) as job:
        for number in range(1, 7, 2):
            job.start_trial(number, f"--rate={number}")
            job.start_trial(number + 1, f"--rate={number + 1}")
            found = {job.wait_for(lambda one: one.trial and one.trial.ended).trial for _ in range(2)}
            finals = {one.trial: one.final.value for one in found if one is not None and one.final}

            assert finals == {number: 2.0 * number, number + 1: 2.0 * number + 2}
        job.finish_trials()
        assert job.finish().done is not None


def test_each_trial_is_a_whole_cluster(tmp_path: Path) -> None:
    source = """
        import json, os, hypertune

        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        print(sorted(cluster), flush=True)
        if os.environ["RANK"] == "0":
            hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", len(cluster["worker"]), 1)
    """
    group = (ReplicaGroup(ReplicaRole.MASTER), ReplicaGroup(ReplicaRole.WORKER, 2))
    with TuningRun(tmp_path, source, slots=(group,)) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is not None
    assert report.final.value == 2
    assert job.lines() == ["['chief', 'worker']"]


def test_metrics_come_while_a_trial_runs_and_the_last_counts_when_it_is_stopped(tmp_path: Path) -> None:
    with TuningRun(tmp_path, WAIT) as job:
        job.start_trial(1)
        points = job.wait_for_points(1).points
        job.stop_trial(1)
        report = job.wait_for_end(1)
        (pid,) = job.wait_for_pids(1)
        job.start_trial(2)
        job.wait_for_points(2)
        job.finish_trials()
        assert job.finish().done is not None

    assert points[0].step == 1
    assert report.final is not None
    assert report.final.step >= points[-1].step
    assert not is_alive(pid)


def test_a_program_that_fails_fails_its_trial_alone(tmp_path: Path) -> None:
    source = """
        import sys
        import hypertune

        hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", 0.5, 1)
        if "--bad=1" in sys.argv:
            raise ValueError("no such rate")
    """
    with TuningRun(tmp_path, source) as job:
        job.start_trial(1, "--bad=1")
        failed = job.wait_for_end(1)
        job.start_trial(2, "--bad=0")
        succeeded = job.wait_for_end(2)
        job.finish_trials()
        assert job.finish().done is not None

    assert failed.final is None
    assert "The replica master 0 exited with a non-zero status of 1" in failed.failure
    assert failed.failure.endswith("ValueError: no such rate")
    assert succeeded.final is not None
    logged = [entry.task for entry in job.entries() if entry.text == "ValueError: no such rate"]
    assert logged == ["master-replica-0"]


def test_a_trial_without_its_metric_says_what_it_saw(tmp_path: Path) -> None:
    source = """
        import hypertune

        hypertune.HyperTune().report_hyperparameter_tuning_metric("acc", 0.5, 1)
    """
    with TuningRun(tmp_path, source) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is None
    assert 'No value of the tag "accuracy" was in the file of hypertune' in report.failure
    assert 'Tags seen: "acc" (last 0.5, in ' in report.failure
    assert f"{job.job_dir}/1" in report.failure


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_trial_that_diverged_has_failed(tmp_path: Path, value: str) -> None:
    with TuningRun(tmp_path, REPORT) as job:
        job.start_trial(1, f"--rate={value}")
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is None
    assert report.failure == f'The metric "accuracy" was {value} at its last step, 3.'


def test_event_files_of_the_trial_count_where_nothing_is_reported(tmp_path: Path) -> None:
    source = """
        import argparse, os, sys

        sys.path.insert(0, os.environ["TESTS"])
        from tests.tuning.metrics.event_writer import write_event

        parser = argparse.ArgumentParser()
        parser.add_argument("--job-dir")
        folder = os.path.join(parser.parse_args().job_dir, "validation")
        os.makedirs(folder)
        with open(os.path.join(folder, "events.out.tfevents.1.host"), "wb") as file:
            for step in range(4):
                file.write(write_event("accuracy", step / 4, step))
    """
    root = str(Path(__file__).parents[3])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "modules"), "TESTS": root}
    with TuningRun(tmp_path, source, environment=environment) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is not None
    assert (report.final.step, report.final.value) == (3, 0.75)


def test_a_killed_program_is_started_again_within_its_trial(tmp_path: Path) -> None:
    source = """
        import os, signal, hypertune

        if os.environ["PILOTLIGHT_RESTART"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", 1, 1)
    """
    with TuningRun(tmp_path, source, restarts=RestartLimits(in_place=1)) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is not None
    assert any("It is started again" in entry.text for entry in job.entries() if entry.trial == "1")


def test_a_trial_whose_supervisor_is_killed_is_lost_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    with TuningRun(tmp_path, WAIT) as job:
        job.start_trial(1)
        job.wait_for_points(1)
        (program,) = job.wait_for_pids(1)
        os.kill(parent_of(program), signal.SIGKILL)
        report = job.wait_for_end(1)
        job.start_trial(2)
        job.wait_for_points(2)
        job.finish_trials()
        job.finish()

    assert report.lost
    assert not is_alive(program)


def test_a_trial_whose_supervisor_hangs_is_lost_and_others_run(tmp_path: Path) -> None:
    with TuningRun(tmp_path, WAIT, silence_seconds=8.0) as job:
        job.start_trial(1)
        job.wait_for_points(1)
        (program,) = job.wait_for_pids(1)
        supervisor = parent_of(program)
        os.kill(supervisor, signal.SIGSTOP)
        report = job.wait_for_end(1)
        wait_until_gone({supervisor, program})
        job.start_trial(1)
        again = job.wait_for_points(1)
        job.finish_trials()
        assert job.finish().done is not None

    assert report.lost
    assert again.points
    assert "The supervisor of trial 1 hangs and is ended." in [entry.text for entry in job.entries()]


def test_a_cancelled_job_ends_all_trials(tmp_path: Path) -> None:
    with TuningRun(tmp_path, WAIT, slots=(MASTER, MASTER)) as job:
        job.start_trial(1)
        job.start_trial(2)
        pids = job.wait_for_pids(2)
        job.cancel()
        last = job.finish()

    assert last.failed is not None
    assert last.failed.status == "CANCELLED"
    assert not any(map(is_alive, pids))


def test_a_job_that_is_ended_for_a_reason_fails(tmp_path: Path) -> None:
    with TuningRun(tmp_path, WAIT) as job:
        job.start_trial(1)
        job.wait_for_points(1)
        job.finish_trials("Too many trials failed.")
        last = job.finish()

    assert last.failed is not None
    assert last.failed.message == "Too many trials failed."


def test_with_the_server_all_trials_end(tmp_path: Path) -> None:
    with TuningRun(tmp_path, WAIT, slots=(MASTER, MASTER)) as job:
        job.start_trial(1)
        job.start_trial(2)
        pids = job.wait_for_pids(2)
        job.cut_lifeline()
        job.process.wait(20)
        wait_until_gone(pids)


def test_logs_tell_trials_apart_and_have_ids_in_order(tmp_path: Path) -> None:
    with TuningRun(tmp_path, "print('hello')", slots=(MASTER, MASTER)) as job:
        job.start_trial(1)
        job.start_trial(2)
        for _ in range(2):
            job.wait_for(lambda one: one.trial is not None and one.trial.ended)
        job.finish_trials()
        job.finish()
    entries = job.entries()

    assert {entry.trial for entry in entries if entry.text == "hello"} == {"1", "2"}
    assert len({(entry.time, entry.id) for entry in entries}) == len(entries)
    assert "Trial 1 starts: " in [entry.text for entry in entries if entry.task == "service"]


@pytest.mark.parametrize(
    "line", ['{"accuracy": 0.5, "timestamp": "inf"}', '{"accuracy": 0.5, "timestamp": 1e300}']
)
def test_a_report_with_an_absurd_time_counts(tmp_path: Path, line: str) -> None:
    source = f"""
        import os

        with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
            file.write({line!r} + chr(10))
    """
    with TuningRun(tmp_path, source) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is not None
    assert 0 <= report.final.elapsed_seconds < HANG_SECONDS


def test_tags_that_are_long_or_no_text_are_told_all_the_same(tmp_path: Path) -> None:
    source = """
        import json, os

        with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
            for number in range(12):
                file.write(json.dumps({str(number) * 50_000: 0.5}) + chr(10))
            file.write(json.dumps({chr(0xD800): 0.5}) + chr(10))
    """
    with TuningRun(tmp_path, source) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert not report.lost
    assert "Tags seen: " in report.failure


def test_a_metric_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    source = """
        import os

        with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
            file.truncate(1 << 40)
    """
    with TuningRun(tmp_path, source) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert "No tag was seen at all." in report.failure


def test_replicas_of_a_trial_report_to_files_of_their_own(tmp_path: Path) -> None:
    """All at the same time; the chief's value counts."""
    source = """
        import os, hypertune

        tuner = hypertune.HyperTune()
        for step in range(200):
            tuner.report_hyperparameter_tuning_metric("accuracy", int(os.environ["RANK"]), step)
    """
    group = (ReplicaGroup(ReplicaRole.MASTER), ReplicaGroup(ReplicaRole.WORKER, 2))
    with TuningRun(tmp_path, source, slots=(group,)) as job:
        job.start_trial(1)
        report = job.wait_for_end(1)
        job.finish_trials()
        job.finish()

    assert report.final is not None
    assert (report.final.step, report.final.value) == (199, 0)
