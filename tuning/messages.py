"""The messages between the gateway and the process that suggests trials: JSON. Imports nothing heavy.

The process is given a SuggesterOrder: on stdin of `python -m tuning`, or as the arguments of its entry
`tuning.suggester:start` where a pilot forks it. It listens at that address and then reports SUGGESTER_READY,
in a line on stdout or as a pilot's child does. Over a connection it reads requests, one per line, and writes
an answer to each, in their order. It keeps nothing that changes an answer: equal requests have equal answers,
in any process; one that is slower may answer a request for many points with fewer of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tuning.space import Value
from tuning.study import Study, Trial

SUGGESTER_READY = {"ready": True}


class SuggesterOrder(msgspec.Struct, frozen=True):
    """`address` is the path of the unix socket that it is to make, `nice` how far others come first."""

    address: str
    nice: int = 0


class KnownTrial(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What suggestions learn from. `objectives` are in the order of the study's metrics.

    Without objectives the trial is still at work, or `infeasible`.
    """

    number: int
    parameters: dict[str, Value]
    objectives: tuple[float, ...] = ()
    infeasible: bool = False


class SuggestionRequest(msgspec.Struct, frozen=True, tag="suggest"):
    """Asks for points of `count` new trials, which will be numbered from `first_number` on."""

    study: Study
    trials: tuple[KnownTrial, ...]
    count: int
    first_number: int


class ImportanceRequest(msgspec.Struct, frozen=True, tag="importance"):
    """Asks how much each parameter matters for the first metric."""

    study: Study
    trials: tuple[KnownTrial, ...]


TuningRequest = SuggestionRequest | ImportanceRequest


class SuggestionAnswer(msgspec.Struct, frozen=True, tag="suggest"):
    """Fewer points than asked for, at least one, where time is up; or where the space is used up.

    In the latter case `exhausted` is set, and there may be none.
    """

    points: tuple[dict[str, Value], ...]
    exhausted: bool = False


class ImportanceAnswer(msgspec.Struct, frozen=True, tag="importance"):
    """Shares by name of the parameter, which add up to 1; empty where too few trials are completed."""

    shares: dict[str, float]


class TuningFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The request was not answered: the name of a google.rpc code and a message."""

    status: str
    message: str


TuningAnswer = SuggestionAnswer | ImportanceAnswer | TuningFailure


def read_known_trials(study: Study, trials: Iterable[Trial]) -> tuple[KnownTrial, ...]:
    """Trials as suggestions see them, in the order of their numbers.

    A completed trial without all of the study's metrics counts as infeasible.
    """
    return tuple(_read_known_trial(study, trial) for trial in sorted(trials, key=lambda one: one.number))


def _read_known_trial(study: Study, trial: Trial) -> KnownTrial:
    parameters = trial.parameters
    if not trial.is_completed:
        return KnownTrial(trial.number, parameters)
    values = trial.final.values if trial.final is not None and not trial.infeasible else {}
    names = [metric.name for metric in study.metrics]
    if not all(name in values for name in names):
        return KnownTrial(trial.number, parameters, infeasible=True)
    return KnownTrial(trial.number, parameters, tuple(values[name] for name in names))
