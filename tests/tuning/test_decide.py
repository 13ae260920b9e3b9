from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuning.decide import MAX_ATTEMPTS, Action, Fail, Finish, Start, Stop, Suggest, TuningPlan, decide
from tuning.space import Parameter, ParameterKind, SearchSpace
from tuning.study import Goal, Measurement, Metric, StoppingRule, Study, Trial, TrialState

SPACE = SearchSpace((Parameter(name="x", kind=ParameterKind.INTEGER, minimum=1, maximum=1000),))
STUDY = Study(uid="u", space=SPACE, metrics=(Metric("loss", Goal.MINIMIZE),))


def make_trial(number: int, loss: float | None = None, *, failed: str = "", attempts: int = 0) -> Trial:
    """At work, unless it has a loss or has failed."""
    trial = Trial(number=number, parameters={"x": number}, attempts=attempts)
    if loss is None and not failed:
        return trial
    final = Measurement(1, values={"loss": loss}) if loss is not None else None
    return msgspec.structs.replace(
        trial,
        state=TrialState.COMPLETED,
        final=final,
        infeasible=bool(failed),
        infeasible_reason=failed,
        ended_at=float(number),
    )


def test_the_first_trials_are_asked_for_together() -> None:
    assert decide(STUDY, TuningPlan(max_trials=10, max_parallel=4), [], ()) == [Suggest(4)]
    assert decide(STUDY, TuningPlan(max_trials=3, max_parallel=4), [], ()) == [Suggest(3)]


def test_nothing_is_asked_for_twice() -> None:
    plan = TuningPlan(max_trials=10, max_parallel=4)

    assert decide(STUDY, plan, [], (), suggesting=4) == []
    assert decide(STUDY, plan, [make_trial(1)], (), suggesting=3) == [Start(1)]


def test_a_place_that_becomes_free_is_filled() -> None:
    trials = [make_trial(1, 0.5), make_trial(2)]

    assert decide(STUDY, TuningPlan(max_trials=10, max_parallel=2), trials, {2}) == [Suggest(1)]
    assert decide(STUDY, TuningPlan(max_trials=2, max_parallel=2), trials, {2}) == []


def test_a_trial_that_was_lost_starts_again_with_its_number() -> None:
    trials = [make_trial(1, attempts=2), make_trial(2, attempts=1)]

    assert decide(STUDY, TuningPlan(max_trials=2, max_parallel=2), trials, {2}) == [Start(1)]


def test_a_trial_that_is_lost_again_and_again_fails() -> None:
    trials = [make_trial(1, attempts=MAX_ATTEMPTS)]

    assert decide(STUDY, TuningPlan(), trials, {1}) == []
    assert decide(STUDY, TuningPlan(), trials, ()) == [
        Fail(1, "The trial was lost 5 times together with its processes.")
    ]


def test_a_job_ends_when_its_trials_have() -> None:
    plan = TuningPlan(max_trials=2)

    assert decide(STUDY, plan, [make_trial(1, 0.5), make_trial(2)], {2}) == []
    assert decide(STUDY, plan, [make_trial(1, 0.5), make_trial(2, 0.1)], ()) == [
        Finish(True, "2 of 2 trials succeeded.")
    ]


def test_a_used_up_space_ends_a_job_with_fewer_trials() -> None:
    plan = TuningPlan(max_trials=9, max_parallel=2)

    assert decide(STUDY, plan, [make_trial(1, 0.5), make_trial(2)], {2}, exhausted=True) == []
    assert decide(STUDY, plan, [make_trial(1, 0.5)], (), exhausted=True) == [
        Finish(True, "1 of 1 trials succeeded. All points of the search space have been tried.")
    ]


def test_a_resumed_job_counts_new_trials_alone() -> None:
    """It learns from the earlier ones, but their failures are not its own."""
    plan = TuningPlan(max_trials=2, first_number=3, max_failed=1)
    earlier = [make_trial(1, failed="boom"), make_trial(2, 0.5)]

    assert decide(STUDY, plan, earlier, ()) == [Suggest(1)]
    assert decide(STUDY, plan, [*earlier, make_trial(3, 0.1), make_trial(4, 0.2)], ()) == [
        Finish(True, "2 of 2 trials succeeded.")
    ]


@pytest.mark.parametrize(
    ("plan", "failed", "succeeded", "message"),
    [
        (TuningPlan(max_trials=20, max_failed=2), 1, 0, ""),
        (
            TuningPlan(max_trials=20, max_failed=2),
            2,
            5,
            "2 trials failed, the limit (maxFailedTrials).",
        ),
        (TuningPlan(max_trials=20), 2, 0, ""),
        (TuningPlan(max_trials=20), 3, 0, "All of the first 3 trials failed."),
        (TuningPlan(max_trials=20, max_parallel=4), 3, 0, ""),
        (TuningPlan(max_trials=20, max_parallel=4), 4, 0, "All of the first 4 trials failed."),
        (TuningPlan(max_trials=20), 5, 5, ""),
        (TuningPlan(max_trials=20), 6, 5, "6 of 11 trials failed."),
        (TuningPlan(max_trials=2), 2, 0, "All of the first 2 trials failed."),
    ],
)
def test_failed_trials_end_a_job(plan: TuningPlan, failed: int, succeeded: int, message: str) -> None:
    trials = [make_trial(number, failed=f"boom {number}") for number in range(1, failed + 1)]
    trials += [make_trial(number, 0.5) for number in range(failed + 1, failed + succeeded + 1)]

    actions = decide(STUDY, plan, trials, ())

    if message:
        assert actions == [Finish(False, f"{message} Trial {failed}: boom {failed}")]
    else:
        assert not any(isinstance(action, Finish) for action in actions)


def test_a_hopeless_trial_is_stopped_once() -> None:
    study = msgspec.structs.replace(STUDY, stopping_rule=StoppingRule.MEDIAN)

    def with_curve(trial: Trial, loss: float) -> Trial:
        curve = tuple(Measurement(step, values={"loss": loss}) for step in (1, 2, 3))
        return msgspec.structs.replace(trial, measurements=curve)

    good = [with_curve(make_trial(number, 0.1), 0.1) for number in (1, 2, 3)]
    bad = with_curve(make_trial(4), 0.9)
    stopping = msgspec.structs.replace(bad, state=TrialState.STOPPING, stopped_early=True)
    plan = TuningPlan(max_trials=4)

    assert decide(study, plan, [*good, bad], {4}) == [Stop(4)]
    assert decide(study, plan, [*good, stopping], {4}) == []
    assert decide(STUDY, plan, [*good, bad], {4}) == []


# ---- whole jobs


@dataclass
class Job:
    """Does what is decided, with programs that end by chance, and a server that is killed by chance."""

    plan: TuningPlan
    points: int
    chance: random.Random
    trials: dict[int, Trial] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    ends: list[int] = field(default_factory=list)
    suggesting: int = 0
    exhausted: bool = False
    finish: Finish | None = None

    def take(self, action: Action) -> None:
        match action:
            case Suggest(count):
                assert self.suggesting == 0
                self.suggesting = count
            case Start(number):
                assert number not in self.running
                self.running.add(number)
                trial = self.trials[number]
                self.trials[number] = msgspec.structs.replace(trial, attempts=trial.attempts + 1)
            case Fail(number, reason):
                self.end(number, None, reason)
            case Finish():
                self.finish = action
            case Stop():
                raise AssertionError("no early stopping")

    def end(self, number: int, loss: float | None, failed: str = "") -> None:
        self.running.discard(number)
        self.ends.append(number)
        ended = make_trial(number, loss, failed=failed)
        self.trials[number] = msgspec.structs.replace(ended, attempts=self.trials[number].attempts)

    def go_on(self) -> None:
        """Something happens."""
        happening = self.chance.choice(["answer", "end", "end", "end", "fail", "kill"])
        if happening == "kill" and self.chance.random() < 0.3:
            self.running, self.suggesting, self.exhausted = set(), 0, False
        elif happening in ("end", "fail") and self.running:
            number = self.chance.choice(sorted(self.running))
            self.end(number, *((None, "boom") if happening == "fail" else (self.chance.random(), "")))
        elif self.suggesting:
            for _ in range(self.suggesting):
                number = max(self.trials, default=self.plan.first_number - 1) + 1
                self.exhausted |= number > self.points
                if not self.exhausted:
                    self.trials[number] = make_trial(number)
            self.suggesting = 0


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 8),
    st.integers(0, 5),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(),
)
def test_every_trial_ends_once(
    trials: int, parallel: int, failed: int, points: int, first: int, seed: int
) -> None:
    """Numbers have no gap, no more trials run than may, and the job comes to an end."""
    plan = TuningPlan(max_trials=trials, max_parallel=parallel, max_failed=failed, first_number=first)
    job = Job(plan, points, random.Random(seed))
    while job.finish is None:
        for action in decide(
            STUDY, plan, job.trials.values(), job.running, suggesting=job.suggesting, exhausted=job.exhausted
        ):
            job.take(action)
        assert len(job.running) <= parallel
        assert len([one for one in job.trials.values() if not one.is_completed]) <= parallel
        if job.finish is None:
            job.go_on()

    assert len(job.ends) == len(set(job.ends))
    assert sorted(job.trials) == list(range(first, first + len(job.trials)))
    assert len(job.trials) <= trials
    succeeded = [one for one in job.trials.values() if one.is_completed and not one.infeasible]
    if job.finish.succeeded:
        assert not job.running
        assert all(one.is_completed for one in job.trials.values())
        assert len(job.trials) == min(trials, max(0, points - first + 1))
        assert succeeded or not job.trials
    failures = len([one for one in job.trials.values() if one.infeasible])
    assert failed == 0 or job.finish.succeeded == (failures < failed and bool(succeeded or not job.trials))
