"""Where most of the time of a version's requests goes, in words, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serving.gateway.console.charts.phase_bars import NO_REQUEST, TRANSFER, compute_mean, separate_warm
from serving.gateway.observability.prediction_stats import PhaseHistograms
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
_LEAST_SHARE: Final = 0.05
_COLD_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """`action` is said in words of the console; `command` does the same, "" where none does."""

    sentence: str
    action: str
    command: str = ""


def find_bottleneck(
    name: VersionName, phases: PhaseHistograms, started: PhaseHistograms
) -> Bottleneck | None:
    """None without an answer. `started` is that of `StatsSnapshot`."""
    warm, cold = separate_warm(phases, started), dict(started).get("total", NO_REQUEST)
    total = warm.get("total", NO_REQUEST)
    count, cold_count = sum(total.counts), sum(cold.counts)
    if not count and not cold_count:
        return None
    # Of all these requests: a few of them may have waited for a place.
    means = {
        phase: one.seconds / max(count, sum(one.counts))
        for phase, one in warm.items()
        if phase in _WORDS and any(one.counts)
    }
    means[TRANSFER] = max(0.0, compute_mean(total) - sum(means.values()))
    said = (
        _describe_answer(compute_mean(total), means) if count else "",
        _describe_starts(cold_count, compute_mean(cold)) if cold_count else "",
    )
    largest = max(means, key=means.__getitem__, default="")
    if cold.seconds > _COLD_SHARE * (cold.seconds + total.seconds):
        largest = _START
    update = f"pilotlight versions update {name.version} --model {name.model} --project {name.project}"
    action, flags = _advise(largest)
    return Bottleneck(" ".join(filter(None, said)), action, f"{update} {flags}" if flags else "")


def _describe_answer(whole: float, means: Mapping[str, float]) -> str:
    """The phases that matter, the longest first."""
    ordered = sorted(means.items(), key=lambda one: -one[1])
    told = [(name, mean) for name, mean in ordered if mean >= _LEAST_SHARE * whole]
    parts = [f"{format_milliseconds(mean)} are {_WORDS[name]}" for name, mean in told]
    return f"Of {format_milliseconds(whole)} that a ready node's answer takes on average, {_join(parts)}."


def _describe_starts(count: int, mean: float) -> str:
    took = format_milliseconds(mean)
    if count == 1:
        return f"1 request waited for the start of a node, and took {took}."
    return f"{count:,} requests waited for the start of a node, and took {took} on average."


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
