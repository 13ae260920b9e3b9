"""Rules for the trials of studies. Each works on a draft of the state; see the package.

A trial that a client has asked for is its until it is completed: the client's id is the lease, without end.
For `job` see `serving.gateway.catalog.studies`. Source: sections 3.2 to 3.4 of the reference on training and
tuning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from serving.errors import (
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    field_error,
)
from serving.gateway.catalog.studies import get_study, get_writable_study
from serving.gateway.catalog.study_checks import MAX_REASON_LENGTH, read_measurement, read_point
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ChangeStamp
from serving.gateway.state.study_records import (
    MAX_KEPT_MEASUREMENTS,
    StudyOperationRecord,
    StudyRecord,
    StudySnapshot,
    StudyState,
    TrialRecord,
    thin_measurements,
)
from serving.names import StudyName
from serving.study_resources import TrialBody
from tuning import study as measurements
from tuning.space import SearchSpace, Value, check_point, make_key
from tuning.study import Measurement, Trial, TrialState

MAX_TRIALS = 1000
MAX_SUGGESTIONS = 100
# Measurements of a trial that a client creates.
MAX_SENT_MEASUREMENTS = 1000
# Operations of a study that can still be asked for.
_KEPT_OPERATIONS = 100


class OutdatedPoints(Exception):
    """Points were made of an old state of their study, and others have taken them since."""


def get_trial(state: CatalogState | StateDraft, name: StudyName, number: int) -> Trial:
    """Raises NotFound."""
    found = get_study(state, name).find_trial(number)
    if found is None:
        raise NotFound(
            f'Field: name Error: The trial "{name.format_trial_name(number)}" was not found.', field="name"
        )
    return found


def create_trial(draft: StateDraft, stamp: ChangeStamp, name: StudyName, body: TrialBody) -> Trial:
    """Add a trial of the client's: one that has ended already, or one to be handed out by a suggestion."""
    snapshot = get_writable_study(draft, name, "")
    parameters = read_point(snapshot.record.study.space, body)
    _check_has_room(snapshot)
    now, number = stamp.now.timestamp(), snapshot.record.last_trial + 1
    trial = Trial(number=number, parameters=parameters, state=TrialState.REQUESTED, created_at=now)
    if body.state.upper() == TrialState.COMPLETED:
        trial = msgspec.structs.replace(
            trial,
            measurements=_read_measurements(body),
            infeasible_reason=_check_reason(body.infeasible_reason),
        )
        final = body.final_measurement and read_measurement(body.final_measurement, "trial.final_measurement")
        trial = _complete(snapshot, trial, final or None, body.trial_infeasible, now)
    _put_trials(draft, snapshot.record, [trial])
    return trial


def list_assignable_trials(snapshot: StudySnapshot, client_id: str, count: int) -> list[Trial]:
    """The trials that a client gets before new ones: its own, then those that clients have created."""
    trials = sorted(snapshot.open_trials.values(), key=lambda trial: trial.number)
    own = [one for one in trials if one.state is TrialState.ACTIVE and one.client_id == client_id]
    created = [one for one in trials if one.state is TrialState.REQUESTED]
    return [*own, *created][:count]


def count_trials_to_suggest(snapshot: StudySnapshot, client_id: str, count: int) -> int:
    """How many new trials a suggestion needs. Raises ResourceExhausted if it cannot have any."""
    leased = len(list_assignable_trials(snapshot, client_id, count))
    if not leased:
        _check_has_room(snapshot)
    return min(count - leased, MAX_TRIALS - snapshot.trial_count)


def suggest_trials(
    draft: StateDraft,
    stamp: ChangeStamp,
    name: StudyName,
    client_id: str,
    count: int,
    *,
    uid: str,
    last_trial: int,
    points: Sequence[Mapping[str, Value]],
    started_at: float,
    used_up: bool = False,
) -> StudyOperationRecord:
    """Hand trials out to a client: its own, those that clients have created, then new ones with these points.

    `uid` is that of the study for which the points were made, `last_trial` the last number that was used
    then. `used_up`: there are no other points. Raises OutdatedPoints if a later trial has one of the points,
    or if there is nothing to hand out any more.
    """
    snapshot = get_writable_study(draft, name, "", uid=uid)
    now = stamp.now.timestamp()
    leased = list_assignable_trials(snapshot, client_id, count)
    points = points[: count - len(leased)]
    if not (leased or points) or _are_taken(snapshot, points, last_trial):
        raise OutdatedPoints(str(name))
    handed_out = [_hand_out(trial, client_id, now) for trial in leased]
    changed = [one for one in handed_out if one != snapshot.open_trials[one.number]]
    _put_trials(draft, snapshot.record, changed)
    handed_out += add_trials(draft, stamp, name, points, client_id=client_id)
    if used_up:
        mark_used_up(draft, stamp, name, uid=uid)
    operation = StudyOperationRecord(
        study=name,
        number=snapshot.record.last_operation + 1,
        created_at=started_at,
        ended_at=now,
        client_id=client_id,
        count=count,
        suggested=tuple(trial.number for trial in handed_out),
    )
    return _put_operation(draft, operation)


def add_trials(
    draft: StateDraft,
    stamp: ChangeStamp,
    name: StudyName,
    points: Sequence[Mapping[str, Value]],
    *,
    client_id: str = "",
    job: str = "",
) -> list[Trial]:
    """Add a trial that is ACTIVE for each of the points that were suggested.

    Raises Internal for points that are not in the study's space.
    """
    snapshot = get_writable_study(draft, name, job)
    if points:
        _check_has_room(snapshot, len(points))
    for point in points:
        _check_suggested(snapshot.record.study.space, point)
    now = stamp.now.timestamp()
    trials = [
        Trial(number=number, parameters=dict(point), client_id=client_id, created_at=now, started_at=now)
        for number, point in enumerate(points, snapshot.record.last_trial + 1)
    ]
    _put_trials(draft, snapshot.record, trials)
    return trials


def replace_trials(
    draft: StateDraft, stamp: ChangeStamp, name: StudyName, trials: Sequence[Trial], *, job: str
) -> None:
    """Replace trials of a tuning job by what has become of them."""
    get_writable_study(draft, name, job)
    for trial in trials:
        get_trial(draft, name, trial.number)
        draft.put(TrialRecord(name, _thin_completed(trial)))


def mark_used_up(draft: StateDraft, stamp: ChangeStamp, name: StudyName, *, uid: str) -> None:
    """Nothing more can be suggested; deleting trials may change that."""
    record = get_study(draft, name, uid=uid).record
    if record.state is not StudyState.COMPLETED:
        draft.put(msgspec.structs.replace(record, state=StudyState.COMPLETED))


def add_measurement(
    draft: StateDraft,
    stamp: ChangeStamp,
    name: StudyName,
    number: int,
    measurement: Measurement,
    *,
    job: str = "",
) -> Trial:
    """Add an intermediate measurement; one of the same step and time is replaced."""
    study = get_writable_study(draft, name, job).record.study
    names = [metric.name for metric in study.metrics]
    if measurement.values.keys().isdisjoint(names):
        raise field_error(
            InvalidArgument,
            "measurement.metrics",
            f"The study's metrics are {', '.join(names)}; {', '.join(measurement.values)} is none of them.",
        )
    trial = get_trial(draft, name, number)
    if trial.state not in (TrialState.ACTIVE, TrialState.STOPPING):
        raise _state_error(trial, "measured", "Only trials that are ACTIVE or STOPPING are.")
    changed = measurements.add_measurement(trial, measurement)
    draft.put(TrialRecord(name, changed))
    return changed


def complete_trial(
    draft: StateDraft,
    stamp: ChangeStamp,
    name: StudyName,
    number: int,
    *,
    final: Measurement | None = None,
    infeasible: bool = False,
    reason: str = "",
    job: str = "",
) -> Trial:
    """End a trial with a final measurement, the last one that was added, or as infeasible.

    Whoever completes a trial again in the same way gets the same answer.
    """
    snapshot = get_writable_study(draft, name, job)
    trial = get_trial(draft, name, number)
    if trial.is_completed:
        is_same = trial.infeasible == infeasible and (infeasible or final in (None, trial.final))
        if is_same:
            return trial
        raise _state_error(trial, "completed", "It was completed in another way before.")
    trial = msgspec.structs.replace(trial, infeasible_reason=_check_reason(reason) if infeasible else "")
    completed = _complete(snapshot, trial, final, infeasible, stamp.now.timestamp())
    draft.put(TrialRecord(name, completed))
    return completed


def stop_trial(
    draft: StateDraft, stamp: ChangeStamp, name: StudyName, number: int, *, job: str = ""
) -> Trial:
    """Ask whoever runs a trial to end it."""
    get_writable_study(draft, name, job)
    trial = get_trial(draft, name, number)
    if trial.is_completed:
        raise _state_error(trial, "stopped", "It has ended.")
    stopping = msgspec.structs.replace(trial, state=TrialState.STOPPING)
    if stopping != trial:
        draft.put(TrialRecord(name, stopping))
    return stopping


def record_stopping_check(
    draft: StateDraft,
    stamp: ChangeStamp,
    name: StudyName,
    number: int,
    *,
    uid: str,
    should_stop: bool,
    started_at: float,
) -> StudyOperationRecord:
    """Record whether a trial should stop early; one that should is STOPPING from now on.

    `uid` is that of the study with which the trial was compared.
    """
    snapshot = get_writable_study(draft, name, "", uid=uid)
    trial = get_trial(draft, name, number)
    is_stopping = trial.state is TrialState.STOPPING
    if should_stop and trial.state is TrialState.ACTIVE:
        stopping = msgspec.structs.replace(trial, state=TrialState.STOPPING, stopped_early=True)
        draft.put(TrialRecord(name, stopping))
        is_stopping = True
    operation = StudyOperationRecord(
        study=name,
        number=snapshot.record.last_operation + 1,
        created_at=started_at,
        ended_at=stamp.now.timestamp(),
        checked_trial=number,
        should_stop=is_stopping,
    )
    return _put_operation(draft, operation)


def delete_trial(draft: StateDraft, stamp: ChangeStamp, name: StudyName, number: int) -> None:
    """Forget a trial; its number is not used again."""
    snapshot = get_writable_study(draft, name, "")
    draft.delete(TrialRecord(name, get_trial(draft, name, number)))
    if snapshot.record.state is StudyState.COMPLETED:
        draft.put(msgspec.structs.replace(snapshot.record, state=StudyState.ACTIVE))


def _check_has_room(snapshot: StudySnapshot, count: int = 1) -> None:
    if snapshot.trial_count + count > MAX_TRIALS:
        raise ResourceExhausted(
            f"The study has {snapshot.trial_count} trials; it can have {MAX_TRIALS}. Delete some, or create "
            "another study."
        )


def _are_taken(snapshot: StudySnapshot, points: Sequence[Mapping[str, Value]], last_trial: int) -> bool:
    """Whether a trial with a number above `last_trial` has one of the points."""
    later = (snapshot.find_trial(number) for number in snapshot.list_numbers() if number > last_trial)
    taken = {make_key(trial.parameters) for trial in later if trial is not None}
    return any(make_key(point) in taken for point in points)


def _check_suggested(space: SearchSpace, point: Mapping[str, Value]) -> None:
    try:
        check_point(space, point)
    except InvalidArgument as error:
        raise Internal(f"A point was suggested that is not in the search space: {error.message}") from error


def _put_trials(draft: StateDraft, record: StudyRecord, trials: Sequence[Trial]) -> None:
    """Put trials, some of which may be new."""
    last = max((trial.number for trial in trials), default=0)
    if last > record.last_trial:
        draft.put(msgspec.structs.replace(record, last_trial=last, state=StudyState.ACTIVE))
    for trial in trials:
        draft.put(TrialRecord(record.name, trial))


def _put_operation(draft: StateDraft, operation: StudyOperationRecord) -> StudyOperationRecord:
    """Put a new operation; the oldest ones go."""
    snapshot = draft.studies[operation.study]
    draft.put(msgspec.structs.replace(snapshot.record, last_operation=operation.number))
    draft.put(operation)
    surplus = max(0, len(snapshot.operations) + 1 - _KEPT_OPERATIONS)
    for number in sorted(snapshot.operations)[:surplus]:
        draft.delete(snapshot.operations[number])
    return operation


def _hand_out(trial: Trial, client_id: str, now: float) -> Trial:
    if trial.state is TrialState.ACTIVE:
        return trial
    return msgspec.structs.replace(trial, state=TrialState.ACTIVE, client_id=client_id, started_at=now)


def _complete(
    snapshot: StudySnapshot, trial: Trial, final: Measurement | None, infeasible: bool, now: float
) -> Trial:
    names = [metric.name for metric in snapshot.record.study.metrics]
    if infeasible:
        final = None
    elif final is None:
        final = _find_last_measurement(trial, names)
    elif missing := [name for name in names if name not in final.values]:
        raise field_error(
            InvalidArgument, "final_measurement.metrics", f'The study\'s metric "{missing[0]}" is missing.'
        )
    return _thin_completed(
        msgspec.structs.replace(
            trial, state=TrialState.COMPLETED, final=final, infeasible=infeasible, ended_at=now
        )
    )


def _thin_completed(trial: Trial) -> Trial:
    if not trial.is_completed:
        return trial
    return msgspec.structs.replace(trial, measurements=thin_measurements(trial.measurements))


def _find_last_measurement(trial: Trial, names: Sequence[str]) -> Measurement:
    for measurement in reversed(trial.measurements):
        if all(name in measurement.values for name in names):
            return measurement
    raise field_error(
        InvalidArgument,
        "final_measurement",
        f"Give one with {', '.join(names)}: no measurement with them was added before. Or say "
        "trialInfeasible.",
    )


def _read_measurements(body: TrialBody) -> tuple[Measurement, ...]:
    """In order; of one step and time the last counts."""
    field = "trial.measurements"
    if len(body.measurements) > MAX_SENT_MEASUREMENTS:
        raise field_error(
            InvalidArgument,
            field,
            f"At most {MAX_SENT_MEASUREMENTS} can be given, not {len(body.measurements)}: a completed trial "
            f"keeps {MAX_KEPT_MEASUREMENTS}.",
        )
    read = [read_measurement(one, f"{field}[{place}]") for place, one in enumerate(body.measurements)]
    by_position = {one.position: one for one in read}
    return tuple(by_position[position] for position in sorted(by_position))


def _check_reason(reason: str) -> str:
    if len(reason) > MAX_REASON_LENGTH:
        raise field_error(
            InvalidArgument, "infeasible_reason", f"It is longer than {MAX_REASON_LENGTH} characters."
        )
    return reason


def _state_error(trial: Trial, verb: str, hint: str) -> FailedPrecondition:
    return FailedPrecondition(f"Trial {trial.number} is {trial.state} and cannot be {verb}. {hint}")
