"""What a tuning job does next: a pure function. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from tuning.stopping import EarlyStopping, should_stop
from tuning.study import Study, Trial, TrialState

# A trial whose program was lost so often, together with its server or its supervisor, may be the reason.
MAX_ATTEMPTS = 5
# Without a limit of the user's: a job fails when so many trials failed and none succeeded, or when of so many
# trials more than half failed.
_ALL_FAILED, _HALF_FAILED = 3, 10


class TuningPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`max_failed` failed trials end the job; 0 leaves it to `find_failure`.

    Trials before `first_number` are those of the job that this one goes on with: they are no part of it.
    """

    max_trials: int = 1
    max_parallel: int = 1
    max_failed: int = 0
    first_number: int = 1


@dataclass(frozen=True)
class Suggest:
    """Ask for points of so many new trials."""

    count: int


@dataclass(frozen=True)
class Start:
    """Start the program of a trial: for the first time, or again where it was lost."""

    number: int


@dataclass(frozen=True)
class Stop:
    """End a trial's program before its time; what it has reported counts."""

    number: int


@dataclass(frozen=True)
class Fail:
    """Complete a trial as infeasible."""

    number: int
    reason: str


@dataclass(frozen=True)
class Finish:
    """End the job, and what still runs. No other action comes with it."""

    succeeded: bool
    message: str


Action = Suggest | Start | Stop | Fail | Finish


def decide(
    study: Study,
    plan: TuningPlan,
    trials: Iterable[Trial],
    running: Collection[int],
    *,
    suggesting: int = 0,
    exhausted: bool = False,
    stopping: EarlyStopping | None = None,
) -> list[Action]:
    """`running` has the numbers of the trials whose program runs.

    `stopping` knows the completed ones among `trials`; without it they are read anew.

    `suggesting`: points that have been asked for and are not there yet. `exhausted`: the space is used up.
    Until the state has what the actions lead to, equal calls have equal answers.
    """
    everything = sorted(trials, key=lambda trial: trial.number)
    own = [trial for trial in everything if trial.number >= plan.first_number]
    if failure := find_failure(plan, own):
        return [Finish(False, failure)]
    open_trials = [trial for trial in own if not trial.is_completed]
    wanted = 0 if exhausted else plan.max_trials - len(own)
    if not open_trials and not suggesting and wanted <= 0:
        return [_conclude(own, exhausted)]
    stops: list[Action] = [
        Stop(trial.number)
        for trial in open_trials
        if trial.number in running
        and trial.state is TrialState.ACTIVE
        and (stopping.should_stop(trial) if stopping else should_stop(study, everything, trial))
    ]
    starts = [_start_again(trial) for trial in open_trials if trial.number not in running]
    count = 0 if suggesting else min(plan.max_parallel - len(open_trials), wanted)
    return [*stops, *starts, *([Suggest(count)] if count > 0 else [])]


def _start_again(trial: Trial) -> Action:
    if trial.attempts >= MAX_ATTEMPTS:
        return Fail(trial.number, f"The trial was lost {trial.attempts} times together with its processes.")
    return Start(trial.number)


def find_failure(plan: TuningPlan, trials: Sequence[Trial]) -> str:
    """Why the job fails, "" if it goes on."""
    ended = [trial for trial in trials if trial.is_completed]
    failed = [trial for trial in ended if trial.infeasible]
    if not failed:
        return ""
    last = max(failed, key=lambda trial: (trial.ended_at, trial.number))
    reason = f" Trial {last.number}: {last.infeasible_reason}"
    if plan.max_failed:
        if len(failed) < plan.max_failed:
            return ""
        return f"{len(failed)} trials failed, the limit (maxFailedTrials).{reason}"
    enough = min(max(_ALL_FAILED, plan.max_parallel), plan.max_trials)
    if len(failed) == len(ended) >= enough:
        return f"All of the first {len(ended)} trials failed.{reason}"
    if len(ended) >= _HALF_FAILED and 2 * len(failed) > len(ended):
        return f"{len(failed)} of {len(ended)} trials failed.{reason}"
    return ""


def _conclude(trials: Sequence[Trial], exhausted: bool) -> Finish:
    """The end of a job that has nothing left to do."""
    succeeded = sum(not trial.infeasible for trial in trials)
    if trials and not succeeded:
        reason = f" Trial {trials[0].number}: {trials[0].infeasible_reason}"
        return Finish(False, f"All {len(trials)} trials failed.{reason}")
    used_up = " All points of the search space have been tried." if exhausted else ""
    return Finish(True, f"{succeeded} of {len(trials)} trials succeeded.{used_up}")
