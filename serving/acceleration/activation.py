"""From a study to what is stored, and from there to a runtime that goes its fastest ways."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from serving import acceleration_record
from serving.acceleration.candidates import AccelerableRuntime, BuiltCandidate, Candidate
from serving.acceleration.dispatch import FastPathDispatcher
from serving.acceleration.verification import CandidateProof, VerificationResult
from serving.acceleration_record import (
    PLAIN_STRATEGY,
    AccelerationKey,
    AccelerationRecord,
    CandidateOutcome,
    DamagedRecordError,
    RowRange,
)
from serving.runtimes import Runtime

logger = logging.getLogger(__name__)


def store_record(
    folder: Path, key: AccelerationKey, findings: VerificationResult, seconds: float
) -> AccelerationRecord:
    """Write the converted forms of what is to serve, and the verdict. Raises OSError."""
    ranges = tuple(_choose_ranges(findings))
    serving = {one.way for one in ranges}
    folder.mkdir(parents=True, exist_ok=True)
    tried = tuple(
        _store_candidate(folder, place, proof, proof.candidate.name in serving)
        for place, proof in enumerate(findings.proofs)
    )
    record = AccelerationRecord(
        key=key,
        tried=tried,
        ranges=ranges,
        spread=dict(findings.library_spread),
        seconds=round(seconds, 4),
    )
    acceleration_record.write_record(folder, record)
    return record


def read_matching_record(folder: Path, key: AccelerationKey) -> AccelerationRecord | None:
    """The verdict in a folder, if there is one for just this; why not is logged where it should be there."""
    try:
        record = acceleration_record.read_record(folder)
    except DamagedRecordError as error:
        logger.warning("the verdict on faster ways is not used: %s", error)
        return None
    if record is not None and record.key != key:
        logger.info(
            "the verdict on faster ways is not used: it is one for other libraries or another machine"
        )
        return None
    return record


def activate_fast_path(
    runtime: Runtime, folder: Path, record: AccelerationRecord
) -> FastPathDispatcher | None:
    """Have a runtime go the ways of a verdict; None where it says that the plain path serves.

    So it does, too, where a converted form is damaged; that is logged.
    """
    if not isinstance(runtime, AccelerableRuntime) or not record.is_accelerated:
        return None
    candidates = {offer.name: offer for offer in runtime.list_candidates()}
    tried = {one.name: one for one in record.tried}
    built: dict[str, BuiltCandidate] = {}
    try:
        for name in {one.way for one in record.ranges} - {PLAIN_STRATEGY}:
            built[name] = _restore_candidate(folder, candidates[name], tried[name])
    except Exception as error:
        logger.warning("the plain path serves, for a faster way cannot be used: %s", _describe_error(error))
        return None
    strategies = [
        (one.rows, runtime.predict_reference if one.way == PLAIN_STRATEGY else built[one.way].predict)
        for one in record.ranges
    ]
    dispatcher = FastPathDispatcher(
        runtime.predict_reference, strategies, exact=runtime.exact, library_spread=record.spread
    )
    runtime.set_fast_path(dispatcher)
    return dispatcher


def _choose_ranges(findings: VerificationResult) -> Iterator[RowRange]:
    for timing, way in findings.choose_strategies():
        yield RowRange(
            rows=timing.rows,
            way=way or PLAIN_STRATEGY,
            seconds=round(timing.strategies[way] if way else timing.reference, 9),
            plain_seconds=round(timing.reference, 9),
        )


def _store_candidate(folder: Path, place: int, proof: CandidateProof, serves: bool) -> CandidateOutcome:
    candidate, built = proof.candidate, proof.built
    if built is None or candidate.save is None or not serves:
        return CandidateOutcome(name=candidate.name, refused=proof.refused)
    form = f"form-{place}"
    candidate.save(built, folder / form)
    return CandidateOutcome(
        name=candidate.name, form=form, checksum=acceleration_record.compute_crc32(folder / form)
    )


def _restore_candidate(folder: Path, candidate: Candidate, outcome: CandidateOutcome) -> BuiltCandidate:
    if candidate.restore is None or not outcome.form:
        return candidate.build()
    file = folder / outcome.form
    if acceleration_record.compute_crc32(file) != outcome.checksum:
        raise DamagedRecordError(f"{file} is damaged.")
    return candidate.restore(file)


def _describe_error(error: Exception) -> str:
    return (
        str(error) if isinstance(error, DamagedRecordError | OSError) else f"{type(error).__name__}: {error}"
    )
