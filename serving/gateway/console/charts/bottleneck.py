"""Where most of the time of a version's requests goes, in words, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serving.gateway.console.charts.phase_bars import TRANSFER
from serving.gateway.observability.phase_sums import PhaseSum, PhaseSums
from serving.gateway.observability.wait_recorder import format_milliseconds
from serving.names import VersionName

# Phases of an answer by a ready node, as a sentence calls them.
_WORDS: Final[Mapping[str, str]] = {
    "infer": "the model's own computing",
    "wait": "waiting in the node's queue",
    "queue": "waiting for a place in a node",
    "parse": "reading the request",
    "encode": "writing the answer",
    "gateway": "passing it on in the server",
    TRANSFER: "the way to the node and back, with waits for a processor",
}
_START: Final = "start"
_QUEUES: Final = frozenset({"wait", "queue"})
_CODECS: Final = frozenset({"parse", "encode"})
# Shares of the time: less is not worth a word, and so much is worth a hint.
_LEAST_SHARE: Final = 0.08
_COLD_SHARE: Final = 0.5
# Seconds: where an answer takes less, nothing has to be done.
_QUICK: Final = 0.005


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`action` is said in words of the console; `command` does the same, "" where none does."""

    sentence: str
    action: str
    command: str = ""


def find_bottleneck(name: VersionName, sums: PhaseSums, *, period: str) -> Bottleneck | None:
    """None without an answer. `period` says of when the sums are: `in the last 5 minutes`."""
    total, cold = sums.subtract_started("total"), sums.started.get("total", PhaseSum())
    if not total.requests and not cold.requests:
        return None
    # Of all these requests: a few of them may have waited for a place.
    phases = {phase: sums.subtract_started(phase) for phase in _WORDS}
    means = {
        phase: one.seconds / max(total.requests, one.requests)
        for phase, one in phases.items()
        if one.requests
    }
    means[TRANSFER] = max(0.0, total.mean - sum(means.values()))
    said = (
        _describe_answer(total.mean, means, period) if total.requests else "",
        _describe_starts(cold, period if not total.requests else "") if cold.requests else "",
    )
    largest = max(means, key=means.__getitem__)
    if cold.seconds > _COLD_SHARE * (cold.seconds + total.seconds):
        largest = _START
    elif total.mean < _QUICK:
        return Bottleneck(" ".join(filter(None, said)), "That is quick: nothing has to be done.")
    update = f"pilotlight versions update {name.version} --model {name.model} --project {name.project}"
    action, flags = _advise(largest)
    return Bottleneck(" ".join(filter(None, said)), action, f"{update} {flags}" if flags else "")


def _describe_answer(whole: float, means: Mapping[str, float], period: str) -> str:
    """The phases that matter, the longest first."""
    ordered = sorted(means.items(), key=lambda one: -one[1])
    told = [(name, mean) for name, mean in ordered if mean >= _LEAST_SHARE * whole]
    parts = [f"{format_milliseconds(mean)} were {_WORDS[name]}" for name, mean in told]
    took = format_milliseconds(whole)
    return f"Of {took} that an answer of a ready node took on average {period}, {_join(parts)}."


def _describe_starts(cold: PhaseSum, period: str) -> str:
    took, when = format_milliseconds(cold.mean), f" {period}" if period else ""
    if cold.requests == 1:
        return f"1 request waited for the start of a node{when}, and took {took}."
    return f"{cold.requests:,.0f} requests waited for the start of a node{when}, and took {took} on average."


def _join(parts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _advise(largest: str) -> tuple[str, str]:
    """What to do about the longest phase, in words of the console; and the flags of `versions update`."""
    if largest == _START:
        return (
            'To have a node stay, at the price of its memory: set "Least nodes" to 1 under "Change it".',
            "--min-nodes 1",
        )
    if largest in _QUEUES:
        return (
            'Requests wait for each other. More nodes share them: raise "Most nodes" under "Change it".',
            "--max-nodes N",
        )
    if largest in _CODECS:
        return (
            "Long requests are read and written: send fewer instances at a time, or numbers as binary "
            "tensors (Open Inference Protocol).",
            "",
        )
    if largest == "infer":
        return (
            'The model is what takes the time: "How it is computed" says which faster ways were tried. '
            "Fewer instances in a request, or a smaller model, take less.",
            "",
        )
    return (
        "Neither the model nor its queue takes the time: the machine is busy, so that processes wait for a "
        'processor, or bodies arrive slowly. "Overview" shows what else runs.',
        "",
    )
