"""The rules of trials, step by step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from serving.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
)
from serving.gateway.catalog import studies, trials
from serving.gateway.state.study_records import MAX_KEPT_BYTES, MAX_KEPT_MEASUREMENTS, StudyState
from tests.serving.gateway.catalog.study_world import CONFIG, NAME, StudyWorld, point
from tuning.study import Measurement, Trial, TrialState

LOSS = Measurement(5, 2.0, {"loss": 0.0})


def test_measurements_of_a_created_trial_are_put_in_order() -> None:
    """Of one step and time the last counts."""
    sent = [
        {"stepCount": str(step), "metrics": [{"metric": "loss", "value": value}]}
        for step, value in [(2, 1.0), (1, 2.0), (2, 3.0), *((step, 0.0) for step in range(999, 2, -1))]
    ]

    trial = StudyWorld().request(state="COMPLETED", measurements=sent)

    assert trial.measurements[0] == Measurement(1, 0.0, {"loss": 2.0})
    assert len(trial.measurements) == MAX_KEPT_MEASUREMENTS
    assert trial.final == trial.measurements[-1] == Measurement(999, 0.0, {"loss": 0.0})


def test_a_created_trial_with_too_many_measurements_is_refused() -> None:
    sent = [{"metrics": [{"metric": "loss", "value": 0}]}] * (trials.MAX_SENT_MEASUREMENTS + 1)

    with pytest.raises(InvalidArgument, match="At most 1000 can be given, not 1001") as refused:
        StudyWorld().request(state="COMPLETED", measurements=sent)

    assert refused.value.field == "trial.measurements"


def test_a_client_gets_its_own_trials_again() -> None:
    """Its id is the lease: whoever comes back with it goes on."""
    world = StudyWorld()
    assert world.suggest("a", 2).suggested == (1, 2)
    assert world.suggest("b").suggested == (3,)

    assert world.suggest("a", 2).suggested == (1, 2)
    assert world.suggest("a", 1).suggested == (1,)
    world.complete(1, final=LOSS)
    assert world.suggest("a", 2).suggested == (2, 4)
    assert [world.trial(number).client_id for number in (1, 2, 3, 4)] == ["a", "a", "b", "a"]


def test_created_trials_go_out_before_new_ones() -> None:
    """To whoever comes first; then they are its own."""
    world = StudyWorld()
    world.suggest("a")
    assert world.request(0.0).state is TrialState.REQUESTED

    assert world.suggest("a", 3).suggested == (1, 2, 3)
    assert world.trial(2).client_id == "a"
    assert world.trial(2).state is TrialState.ACTIVE
    assert world.trial(2).parameters == {"x": 0.0, "depth": 3}
    assert world.suggest("b").suggested == (4,)


def test_a_created_trial_may_be_knowledge() -> None:
    """It has ended already, and is handed out to nobody."""
    world = StudyWorld()
    final = {"stepCount": "9", "metrics": [{"metric": "loss", "value": 0}]}

    trial = world.request(state="COMPLETED", finalMeasurement=final)

    assert trial.is_completed
    assert trial.final == Measurement(9, 0.0, {"loss": 0.0})
    assert world.suggest("a").suggested == (2,)
    assert world.request(state="completed", trialInfeasible=True).infeasible


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"parameters": []}, "trial.parameters"),
        ({"parameters": [{"parameter": "x", "floatValue": 2}]}, "trial.parameters"),
        ({"parameters": [{"parameter": "x", "floatValue": 0}]}, "trial.parameters"),
        ({"parameters": [{"parameter": "x"}]}, r"trial.parameters[0]"),
        ({"parameters": [{"parameter": "x", "floatValue": 0}] * 2}, r"trial.parameters[1]"),
        ({"state": "COMPLETED"}, "final_measurement"),
        (
            {"state": "COMPLETED", "finalMeasurement": {"metrics": [{"metric": "other", "value": 1}]}},
            "final_measurement.metrics",
        ),
    ],
)  # fmt: skip
def test_a_created_trial_that_cannot_be_is_refused(fields: dict[str, Any], field: str) -> None:
    world = StudyWorld()

    with pytest.raises(InvalidArgument) as caught:
        world.request(**fields)

    assert caught.value.field == field
    assert world.snapshot.trial_count == 0


def test_a_study_has_a_thousand_trials() -> None:
    """A client keeps those it has; more are refused with what Google's clients take for the end."""
    world = StudyWorld()
    for _ in range(10):
        world.do(trials.add_trials, NAME, [point(number) for number in range(100)])
    world.do(trials.delete_trial, NAME, 7)
    assert world.suggest("a", 5).suggested == (1001,)

    assert world.suggest("a", 5).suggested == (1001,)
    with pytest.raises(ResourceExhausted, match="1000 trials"):
        world.suggest("b")
    with pytest.raises(ResourceExhausted):
        world.request()


def test_numbers_are_not_used_again() -> None:
    """Also that of the last trial."""
    world = StudyWorld()
    world.suggest("a", 2)
    world.do(trials.delete_trial, NAME, 2)

    assert world.suggest("b").suggested == (3,)
    with pytest.raises(NotFound):
        world.trial(2)


def test_points_of_an_old_state_are_refused_where_a_later_trial_has_one() -> None:
    """Those that earlier trials have are known to whoever makes points."""
    world = StudyWorld()
    uid, points = world.snapshot.record.study.uid, [point(0), point(1)]
    world.suggest("a", 2)

    def suggest(last_trial: int) -> Any:
        return world.do(
            trials.suggest_trials, NAME, "b", 2, uid=uid, last_trial=last_trial, points=points, started_at=1.0
        )

    with pytest.raises(trials.OutdatedPoints):
        suggest(0)
    assert suggest(2).suggested == (3, 4)


def test_nothing_to_hand_out_any_more_is_no_suggestion() -> None:
    """What was there is another client's by now."""
    world = StudyWorld()
    uid = world.snapshot.record.study.uid

    with pytest.raises(trials.OutdatedPoints):
        world.do(trials.suggest_trials, NAME, "b", 1, uid=uid, last_trial=0, points=[], started_at=1.0)


def test_a_used_up_study_is_completed_until_trials_go() -> None:
    world = StudyWorld()
    world.suggest("a")

    assert world.suggest("a", 3, used_up=True).suggested == (1,)
    states = [world.snapshot.record.state]
    world.do(trials.delete_trial, NAME, 1)
    assert [*states, world.snapshot.record.state] == [StudyState.COMPLETED, StudyState.ACTIVE]


def test_measurements_are_in_order() -> None:
    """In whatever order they come; the last one of a step and time counts."""
    world = StudyWorld()
    world.suggest("a")
    for step, loss in ((2, 0.5), (1, 0.75), (2, 0.25)):
        world.measure(1, step, loss)

    assert [(one.step, one.values["loss"]) for one in world.trial(1).measurements] == [(1, 0.75), (2, 0.25)]


def test_only_trials_at_work_are_measured() -> None:
    world = StudyWorld()
    world.request()
    with pytest.raises(FailedPrecondition, match="REQUESTED"):
        world.measure(1, 1, 0.5)
    world.suggest("a")
    world.do(trials.stop_trial, NAME, 1)
    world.measure(1, 1, 0.5)
    world.complete(1)
    with pytest.raises(FailedPrecondition, match="COMPLETED"):
        world.measure(1, 2, 0.5)


def test_a_trial_ends_with_its_last_measurement() -> None:
    """The last that has all metrics of the study."""
    world = StudyWorld({**CONFIG, "metrics": [*CONFIG["metrics"], {"metric": "size"}]})
    world.suggest("a")
    whole = Measurement(3, 0.0, {"loss": 0.25, "size": 3.0})
    world.do(trials.add_measurement, NAME, 1, whole)
    world.measure(1, 4, 0.5)

    ended = world.complete(1)

    assert ended.final == whole
    assert ended.ended_at > ended.started_at > 0


def test_a_measurement_has_a_metric_of_the_study() -> None:
    """A misspelt one alone is none; others may come with it."""
    world = StudyWorld()
    world.suggest("a")

    with pytest.raises(InvalidArgument, match="metrics are loss; los, acc is none of them") as caught:
        world.do(trials.add_measurement, NAME, 1, Measurement(1, 0.0, {"los": 1.0, "acc": 0.5}))

    assert caught.value.field == "measurement.metrics"
    both = Measurement(1, 0.0, {"loss": 1.0, "acc": 0.5})
    assert world.do(trials.add_measurement, NAME, 1, both).measurements == (both,)


def test_a_trial_that_was_never_measured_needs_a_final_measurement() -> None:
    world = StudyWorld()
    world.suggest("a")

    with pytest.raises(InvalidArgument) as caught:
        world.complete(1)
    assert caught.value.field == "final_measurement"
    assert world.complete(1, final=LOSS).final == LOSS


def test_an_infeasible_trial_has_no_final_measurement() -> None:
    world = StudyWorld()
    world.suggest("a")

    ended = world.complete(1, final=LOSS, infeasible=True, reason="out of memory")

    assert (ended.final, ended.infeasible_reason) == (None, "out of memory")


@pytest.mark.parametrize("fields", [{"final": LOSS}, {}, {"infeasible": True}])
def test_completing_again_in_the_same_way_changes_nothing(fields: dict[str, Any]) -> None:
    """A client that did not get the answer asks again."""
    world = StudyWorld()
    world.suggest("a")
    world.measure(1, 5, 0.0)
    world.do(trials.add_measurement, NAME, 1, LOSS)
    ended = world.complete(1, **fields)
    state = world.state

    assert world.complete(1, **fields) == ended
    assert world.state.studies[NAME] == state.studies[NAME]
    with pytest.raises(FailedPrecondition, match="another way"):
        world.complete(1, infeasible=not ended.infeasible)
    if not ended.infeasible:
        with pytest.raises(FailedPrecondition, match="another way"):
            world.complete(1, final=Measurement(6, 0.0, {"loss": 1.0}))


def test_a_completed_trial_keeps_few_measurements() -> None:
    world = StudyWorld()
    world.suggest("a")
    for step in range(100):
        world.measure(1, step, 1.0)

    ended = world.complete(1)

    assert len(ended.measurements) == MAX_KEPT_MEASUREMENTS
    assert [ended.measurements[place].step for place in (0, -1)] == [0, 99]


def test_a_check_may_stop_a_trial() -> None:
    """From then on the answer stays the same; others are only told."""
    world = StudyWorld()
    world.suggest("a", 2)

    def check(number: int, should_stop: bool) -> bool:
        found = world.do(
            trials.record_stopping_check,
            NAME,
            number,
            uid=world.snapshot.record.study.uid,
            should_stop=should_stop,
            started_at=1.0,
        )
        assert world.snapshot.operations[found.number] == found
        return bool(found.should_stop)

    assert not check(1, should_stop=False)
    assert check(2, should_stop=True)
    assert check(2, should_stop=False)
    assert world.trial(1).state is TrialState.ACTIVE
    assert (world.trial(2).state, world.trial(2).stopped_early) == (TrialState.STOPPING, True)
    world.complete(2, final=LOSS)
    assert not check(2, should_stop=True)


def test_a_check_says_nothing_of_a_study_that_has_taken_the_name() -> None:
    world = StudyWorld()
    world.suggest("a")

    with pytest.raises(NotFound):
        world.do(trials.record_stopping_check, NAME, 1, uid="another", should_stop=True, started_at=1.0)


def test_stopping_is_asked_for_once() -> None:
    world = StudyWorld()
    world.suggest("a")
    assert world.do(trials.stop_trial, NAME, 1).state is TrialState.STOPPING
    state = world.state

    assert world.do(trials.stop_trial, NAME, 1).state is TrialState.STOPPING
    assert world.state.studies[NAME] == state.studies[NAME]
    world.complete(1, final=LOSS)
    with pytest.raises(FailedPrecondition):
        world.do(trials.stop_trial, NAME, 1)


def test_the_newest_operations_are_kept() -> None:
    world = StudyWorld()
    names = [world.suggest("a").name for _ in range(105)]

    assert sorted(world.snapshot.operations) == list(range(6, 106))
    with pytest.raises(NotFound):
        studies.get_study_operation(world.state, "p", "here", "s-5")
    assert studies.get_study_operation(world.state, "p", "here", "s-105").name == names[-1]


@pytest.mark.parametrize("operation", ["s", "s-", "s-x", "-1", "t-1", "s-1-2", "s-²"])
def test_there_is_no_operation_of_another_name(operation: str) -> None:
    world = StudyWorld()
    world.suggest("a")

    with pytest.raises(NotFound):
        studies.get_study_operation(world.state, "p", "here", operation)


def test_a_job_alone_changes_its_study() -> None:
    """Clients may read it."""
    world = StudyWorld(CONFIG, job="projects/p/jobs/j")
    world.do(trials.add_trials, NAME, [point(1)], job="projects/p/jobs/j")

    for change in (
        world.request,
        lambda: world.suggest("a"),
        lambda: world.measure(1, 1, 0.5),
        lambda: world.complete(1, final=LOSS),
        lambda: world.do(trials.stop_trial, NAME, 1),
        lambda: world.do(trials.delete_trial, NAME, 1),
        lambda: world.do(trials.add_trials, NAME, [point(1)], job="projects/p/jobs/k"),
    ):
        with pytest.raises(FailedPrecondition, match="projects/p/jobs/j"):
            change()
    ended = Trial(number=1, parameters=point(1), state=TrialState.COMPLETED, final=LOSS)
    world.do(trials.replace_trials, NAME, [ended], job="projects/p/jobs/j")
    assert world.trial(1) == ended


@pytest.mark.parametrize("number", [0, 2])
def test_a_trial_that_is_not_there_is_not_found(number: int) -> None:
    world = StudyWorld()
    world.suggest("a")

    for rule in (trials.stop_trial, trials.complete_trial, trials.delete_trial):
        with pytest.raises(ServingError) as caught:
            world.do(rule, NAME, number)
        assert caught.value.status == "NOT_FOUND"


@pytest.mark.parametrize("number", ["", "2", "9" * 5000, "-1", "\u00b2", "x"])
def test_an_operation_that_is_not_there_is_not_found(number: str) -> None:
    world = StudyWorld()
    world.suggest("a")
    assert studies.get_study_operation(world.state, "p", "here", "s-1").suggested == (1,)

    with pytest.raises(NotFound):
        studies.get_study_operation(world.state, "p", "here", f"s-{number}")


def test_a_completed_trial_keeps_fewer_measurements_if_they_are_long() -> None:
    world = StudyWorld()
    sent = [
        {
            "stepCount": str(step),
            "metrics": [
                {"metric": "loss", "value": 1},
                *({"metric": f"{name:02}" + "\u00e9" * 250, "value": 1} for name in range(19)),
            ],
        }
        for step in range(24)
    ]

    trial = world.request(state="COMPLETED", measurements=sent)

    assert len(msgspec.json.encode(trial.measurements)) <= MAX_KEPT_BYTES
    assert [trial.measurements[place].step for place in (0, -1)] == [0, 23]
