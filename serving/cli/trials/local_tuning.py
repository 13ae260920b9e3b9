"""Tunes a program on this machine, without a server."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from threadpoolctl import threadpool_limits

from serving.cli.console import print_note
from serving.cli.trials.trial_table import TrialTable
from serving.gateway.api.studies.trial_rows import TrialRow, sort_rows
from serving.gateway.catalog.job_checks.tuning_checks import read_plan, read_study
from serving.gateway.jobs.kinds.training.trials.trial_results import apply_report, fail_trial, stop_trial
from serving.resources import HyperparameterSpec
from serving.scratch_folders import scratch_folder
from training.local_run import LocalProgram
from training.messages import (
    FinishTrials,
    ReplicaGroup,
    ReplicaRole,
    StartTrial,
    StopTrial,
    TrainingFailure,
    TrainingPhase,
    TrainingReport,
    TrainingRequest,
    TrialReport,
    TrialSettings,
)
from training.trials.tuning_supervisor import TuningSupervisor
from tuning.algorithms.suggestion import suggest_points
from tuning.decide import Fail, Finish, Start, Stop, Suggest, decide
from tuning.messages import SuggestionRequest, read_known_trials
from tuning.space import format_value
from tuning.study import Study, Trial

_LOG_BYTES = 64 << 20
_GRACE_SECONDS = 5.0


class LocalTuning:
    """One search. Trials run in scratch folders, as those of jobs; modules are the program's.

    Without `groups` there is a master alone.
    """

    def __init__(
        self,
        program: LocalProgram,
        groups: Sequence[ReplicaGroup],
        spec: HyperparameterSpec,
        environment: Mapping[str, str],
        job_dir: str,
    ) -> None:
        self._program = program
        self._groups = tuple(groups) or (ReplicaGroup(ReplicaRole.MASTER),)
        self._study = _create_study(spec)
        self._plan = read_plan(spec)
        self._environment = environment
        self._job_dir = job_dir
        self._trials: dict[int, Trial] = {}
        self._running: set[int] = set()
        self._exhausted = False

    def run(self) -> int:
        """Run all trials; returns the exit code."""
        threadpool_limits(1)
        lifeline, _ = os.pipe()
        with scratch_folder("tuning") as folder:
            tag, slots = self._study.metrics[0].name, (self._groups,) * self._plan.max_parallel
            settings = TrialSettings(tag, slots, str(folder / "orders"))
            request = self._build_request(folder)
            self._supervisor = TuningSupervisor(
                request, settings, self._handle_report, lifeline, from_pilot=False
            )
            result = self._supervisor.run()
        if isinstance(result, TrainingFailure):
            print(result.message, file=sys.stderr)
            return 1
        return 0

    def build_table(self) -> TrialTable:
        metric = self._study.metrics[0].name
        return TrialTable(
            self._study, sort_rows(self._study, [_build_row(one, metric) for one in self._trials.values()])
        )

    def _build_request(self, folder: Path) -> TrainingRequest:
        paths = (str(self._program.folder), self._environment.get("PYTHONPATH", ""))
        return TrainingRequest(
            job="local",
            uid="local",
            module=self._program.module,
            args=self._program.arguments,
            job_dir=self._job_dir,
            groups=self._groups,
            interpreter=self._program.python,
            environment={**self._environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            scratch_dir=str(folder),
            log_dir=str(folder / "logs"),
            log_bytes=_LOG_BYTES,
            cache_dir=str(folder / "cache"),
            cache_bytes=0,
            grace_seconds=_GRACE_SECONDS,
        )

    # ---- the loop, which the supervisor's reports drive

    def _handle_report(self, report: TrainingReport) -> None:
        if report.trial is not None:
            self._apply_report(report.trial)
        if report.trial is not None or report.phase is TrainingPhase.RUNNING:
            while self._act():
                pass

    def _apply_report(self, report: TrialReport) -> None:
        trial = apply_report(self._trials[report.trial], report, self._study.metrics[0].name, time.time())
        self._trials[report.trial] = trial
        if report.ended:
            self._running.discard(report.trial)
            print_note(_describe(trial, self._study.metrics[0].name))

    def _act(self) -> bool:
        """Do what comes next; returns whether something more may follow from it."""
        actions = decide(
            self._study, self._plan, self._trials.values(), self._running, exhausted=self._exhausted
        )
        for action in actions:
            match action:
                case Suggest(count):
                    self._suggest(count)
                case Start(number):
                    self._running.add(number)
                    values = self._trials[number].parameters.items()
                    args = tuple(f"--{name}={format_value(value)}" for name, value in values)
                    self._supervisor.handle_order(StartTrial(number, args))
                case Stop(number):
                    self._trials[number] = stop_trial(self._trials[number])
                    self._supervisor.handle_order(StopTrial(number))
                case Fail(number, reason):
                    self._trials[number] = fail_trial(self._trials[number], reason, time.time())
                case Finish(succeeded, message):
                    self._supervisor.handle_order(FinishTrials("" if succeeded else message))
                    return False
        return bool(actions)

    def _suggest(self, count: int) -> None:
        first = len(self._trials) + 1
        known = read_known_trials(self._study, self._trials.values())
        answer = suggest_points(SuggestionRequest(self._study, known, count, first))
        self._exhausted = answer.exhausted
        now = time.time()
        for number, point in enumerate(answer.points, first):
            self._trials[number] = Trial(number=number, parameters=point, created_at=now, started_at=now)


def _create_study(spec: HyperparameterSpec) -> Study:
    return msgspec.structs.replace(read_study(spec), uid=secrets.token_hex(8))


def _describe(trial: Trial, metric: str) -> str:
    values = " ".join(f"--{name}={format_value(value)}" for name, value in trial.parameters.items())
    if trial.final is not None:
        return f"Trial {trial.number}: {metric} = {trial.final.values[metric]:g} with {values}"
    return f"Trial {trial.number} failed with {values}. {trial.infeasible_reason}"


def _build_row(trial: Trial, metric: str) -> TrialRow:
    state = "FAILED" if trial.infeasible else "SUCCEEDED" if trial.is_completed else "RUNNING"
    return TrialRow(
        number=trial.number,
        state=state,
        value=trial.final.values[metric] if trial.final is not None else None,
        step=trial.final.step if trial.final is not None else 0,
        parameters=trial.parameters,
        seconds=trial.ended_at - trial.started_at if trial.ended_at else None,
        reason=trial.infeasible_reason,
    )
