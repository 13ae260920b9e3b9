"""Runs the study of a runtime: which of its offers were proven, and which refused for what reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from serving.runtimes import Runtime, Source, load
from serving.runtimes.acceleration import Accelerable, Candidate
from serving.runtimes.acceleration.study import Findings, Studied, study
from serving.runtimes.instances import Batch


@dataclass(frozen=True)
class Proven:
    """What a study found: the candidates that were proven, and why the others were refused, by name."""

    findings: Findings
    candidates: Mapping[str, Candidate]
    refused: Mapping[str, str]


def prove(runtime: Runtime, *, also: Sequence[Batch] = (), budget: float = 0.0) -> Proven:
    """Study a runtime. `also` are rows to hold its candidates to, besides those it makes itself."""
    assert isinstance(runtime, Accelerable)
    studied = cast(Studied, runtime)
    if also:
        probes = [*studied.probes(), *also]
        studied.probes = lambda: probes  # type: ignore[method-assign]
    findings = study(studied, budget=budget)
    return Proven(
        findings,
        {one.offer.name: one.candidate for one in findings.proofs if one.candidate is not None},
        {one.offer.name: one.refused for one in findings.proofs if one.candidate is None},
    )


def prove_folder(folder: Path, framework: str = "") -> Proven:
    """Load the model in a folder as a node would, and study it."""
    return prove(load(Source(folder, framework)))


def restored(runtime: Runtime, name: str, folder: Path) -> Candidate:
    """The candidate of an offer after its converted form was written and read, as for a wake."""
    assert isinstance(runtime, Accelerable)
    offer = next(offer for offer in runtime.offers() if offer.name == name)
    assert offer.save is not None
    assert offer.restore is not None
    offer.save(offer.build(), folder / "form")
    return offer.restore(folder / "form")
