"""Runs the study of a runtime: which of its offers were proven, and which refused for what reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from serving.acceleration.candidates import AccelerableRuntime, BuiltCandidate
from serving.acceleration.verification import VerifiableRuntime, VerificationResult, verify_candidates
from serving.runtimes import LoadSpec, Runtime, load_model
from serving.runtimes.instance_batch import Batch


@dataclass(frozen=True)
class Proven:
    """What a study found: the candidates that were proven, and why the others were refused, by name."""

    findings: VerificationResult
    candidates: Mapping[str, BuiltCandidate]
    refused: Mapping[str, str]


def prove(runtime: Runtime, *, also: Sequence[Batch] = (), budget: float = 0.0) -> Proven:
    """Study a runtime. `also` are rows to hold its candidates to, besides those it makes itself."""
    assert isinstance(runtime, AccelerableRuntime)
    studied = cast(VerifiableRuntime, runtime)
    if also:
        probes = [*studied.make_verification_rows(), *also]
        studied.make_verification_rows = lambda: probes  # type: ignore[method-assign]
    findings = verify_candidates(studied, budget=budget)
    return Proven(
        findings,
        {one.candidate.name: one.built for one in findings.proofs if one.built is not None},
        {one.candidate.name: one.refused for one in findings.proofs if one.built is None},
    )


def prove_folder(folder: Path, framework: str = "") -> Proven:
    """Load the model in a folder as a node would, and study it."""
    return prove(load_model(LoadSpec(folder, framework)))


def restored(runtime: Runtime, name: str, folder: Path) -> BuiltCandidate:
    """The candidate of an offer after its converted form was written and read, as for a wake."""
    assert isinstance(runtime, AccelerableRuntime)
    offer = next(offer for offer in runtime.list_candidates() if offer.name == name)
    assert offer.save is not None
    assert offer.restore is not None
    offer.save(offer.build(), folder / "form")
    return offer.restore(folder / "form")
