"""Studies as the state has them: one immutable snapshot for each, which a change copies alone.

On disk a study, each of its trials and each of its operations is a document of its own, so that a change
writes what it changes and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

import msgspec

from serving.names import StudyName
from tuning.study import Measurement, Study, Trial, TrialState, can_keep

T = TypeVar("T")

# Measurements of a completed trial, evenly spread: with them it takes 1 KiB. Bytes, for those with many and
# long names, are as JSON.
MAX_KEPT_MEASUREMENTS, MAX_KEPT_BYTES = 24, 1 << 15


class StudyState(StrEnum):
    """COMPLETED: nothing more can be suggested."""

    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"


class StudyRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A study. `job` is the name of the tuning job that it belongs to, "" for none.

    Trials and operations are numbered from 1; `last_trial` and `last_operation` are the last numbers used.
    """

    name: StudyName
    study: Study
    state: StudyState = StudyState.ACTIVE
    create_time: str
    job: str = ""
    last_trial: int = 0
    last_operation: int = 0


class TrialRecord(msgspec.Struct, frozen=True):
    """A trial as it is stored on disk."""

    study: StudyName
    trial: Trial

    @property
    def name(self) -> str:
        return self.study.format_trial_name(self.trial.number)


class StudyOperationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A suggestion, or with `checked_trial` a check whether that trial should stop; done when it is there.

    `suggested` are the numbers of the trials that `client_id` got when it asked for `count`.
    """

    study: StudyName
    number: int
    created_at: float
    ended_at: float
    client_id: str = ""
    count: int = 0
    suggested: tuple[int, ...] = ()
    checked_trial: int = 0
    should_stop: bool = False

    @property
    def name(self) -> str:
        study = self.study
        return f"projects/{study.project}/locations/{study.location}/operations/{study.study}-{self.number}"


@dataclass(frozen=True, slots=True)
class StudySnapshot:
    """A study with its trials and operations by number. Completed trials are packed: they are many."""

    record: StudyRecord
    open_trials: Mapping[int, Trial] = field(default_factory=dict)
    packed_trials: Mapping[int, bytes] = field(default_factory=dict)
    operations: Mapping[int, StudyOperationRecord] = field(default_factory=dict)

    @property
    def trial_count(self) -> int:
        return len(self.open_trials) + len(self.packed_trials)

    def find_trial(self, number: int) -> Trial | None:
        packed = self.packed_trials.get(number)
        return self.open_trials.get(number) if packed is None else unpack_trial(packed)

    def list_numbers(self) -> list[int]:
        """The numbers of all trials, in order."""
        return sorted((*self.open_trials, *self.packed_trials))

    def iter_trials(self, *, measured: bool = True) -> Iterator[Trial]:
        """All trials in the order of their numbers; completed ones without measurements if not `measured`."""
        for number in self.list_numbers():
            if number in self.open_trials:
                yield self.open_trials[number]
            else:
                yield unpack_trial(self.packed_trials[number], measured=measured)

    def with_record(self, record: StudyRecord) -> StudySnapshot:
        return replace(self, record=record)

    def with_trial(self, trial: Trial) -> StudySnapshot:
        snapshot = self.without_trial(trial.number)
        if trial.is_completed:
            return replace(
                snapshot, packed_trials={**snapshot.packed_trials, trial.number: pack_trial(trial)}
            )
        return replace(snapshot, open_trials={**snapshot.open_trials, trial.number: trial})

    def without_trial(self, number: int) -> StudySnapshot:
        if number in self.open_trials:
            return replace(self, open_trials=_without_key(self.open_trials, number))
        if number in self.packed_trials:
            return replace(self, packed_trials=_without_key(self.packed_trials, number))
        return self

    def with_operation(self, operation: StudyOperationRecord) -> StudySnapshot:
        return replace(self, operations={**self.operations, operation.number: operation})

    def without_operation(self, number: int) -> StudySnapshot:
        return replace(self, operations=_without_key(self.operations, number))


def assemble_snapshots(
    studies: Iterable[StudyRecord],
    trials: Iterable[TrialRecord],
    operations: Iterable[StudyOperationRecord],
) -> dict[StudyName, StudySnapshot]:
    """Put together what was read; trials and operations of no study are left out."""
    opened: dict[StudyName, dict[int, Trial]] = {}
    packed: dict[StudyName, dict[int, bytes]] = {}
    done: dict[StudyName, dict[int, StudyOperationRecord]] = {}
    for one in trials:
        if one.trial.is_completed:
            packed.setdefault(one.study, {})[one.trial.number] = pack_trial(one.trial)
        else:
            opened.setdefault(one.study, {})[one.trial.number] = one.trial
    for operation in operations:
        done.setdefault(operation.study, {})[operation.number] = operation
    return {
        record.name: StudySnapshot(
            record,
            opened.get(record.name, {}),
            packed.get(record.name, {}),
            done.get(record.name, {}),
        )
        for record in studies
    }


def thin_measurements(
    measurements: tuple[Measurement, ...], most: int = MAX_KEPT_MEASUREMENTS
) -> tuple[Measurement, ...]:
    """At most `most` of them, evenly spread, the first and the last included; fewer if they are long."""
    if len(measurements) > most:
        step = (len(measurements) - 1) / (most - 1)
        measurements = tuple(measurements[round(place * step)] for place in range(most))
    if len(measurements) <= 2 or can_keep(measurements, most, MAX_KEPT_BYTES):
        return measurements
    return thin_measurements(measurements, max(2, len(measurements) // 2))


# ---- completed trials in few bytes


class _PackedTrial(msgspec.Struct, frozen=True, array_like=True):
    """A completed trial without names of fields, its measurements in columns."""

    number: int
    parameters: dict[str, float | int | str]
    client_id: str
    infeasible: bool
    infeasible_reason: str
    stopped_early: bool
    attempts: int
    times: tuple[float, float, float]
    final: Measurement | None
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    values: dict[str, tuple[float | None, ...]]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_PackedTrial)


def pack_trial(trial: Trial) -> bytes:
    measurements = trial.measurements
    names = {name: None for one in measurements for name in one.values}
    return _ENCODER.encode(
        _PackedTrial(
            number=trial.number,
            parameters=trial.parameters,
            client_id=trial.client_id,
            infeasible=trial.infeasible,
            infeasible_reason=trial.infeasible_reason,
            stopped_early=trial.stopped_early,
            attempts=trial.attempts,
            times=(trial.created_at, trial.started_at, trial.ended_at),
            final=trial.final,
            steps=tuple(one.step for one in measurements),
            seconds=tuple(one.elapsed_seconds for one in measurements),
            values={name: tuple(one.values.get(name) for one in measurements) for name in names},
        )
    )


def unpack_trial(packed: bytes, *, measured: bool = True) -> Trial:
    found = _DECODER.decode(packed)
    created_at, started_at, ended_at = found.times
    return Trial(
        number=found.number,
        parameters=found.parameters,
        state=TrialState.COMPLETED,
        measurements=tuple(_iter_measurements(found)) if measured else (),
        final=found.final,
        client_id=found.client_id,
        infeasible=found.infeasible,
        infeasible_reason=found.infeasible_reason,
        stopped_early=found.stopped_early,
        attempts=found.attempts,
        created_at=created_at,
        started_at=started_at,
        ended_at=ended_at,
    )


def _iter_measurements(packed: _PackedTrial) -> Iterator[Measurement]:
    for place, (step, seconds) in enumerate(zip(packed.steps, packed.seconds, strict=True)):
        values = {name: column[place] for name, column in packed.values.items()}
        yield Measurement(step, seconds, {name: value for name, value in values.items() if value is not None})


def _without_key(mapping: Mapping[int, T], key: int) -> dict[int, T]:
    return {other: value for other, value in mapping.items() if other != key}
