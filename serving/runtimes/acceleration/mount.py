"""From a study to what is stored, and from there to a runtime that goes its fastest ways."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from serving import verdicts
from serving.runtimes import Runtime
from serving.runtimes.acceleration import Accelerable, Candidate, Offer
from serving.runtimes.acceleration.study import Findings, Proof
from serving.runtimes.acceleration.switch import Switch
from serving.verdicts import (
    PLAIN_STRATEGY,
    AccelerationKey,
    AccelerationRecord,
    CandidateOutcome,
    DamagedRecordError,
    RowRange,
)

logger = logging.getLogger(__name__)


def store(folder: Path, key: AccelerationKey, findings: Findings, seconds: float) -> AccelerationRecord:
    """Write the converted forms of what is to serve, and the verdict. Raises OSError."""
    ranges = tuple(_ranges(findings))
    serving = {one.way for one in ranges}
    folder.mkdir(parents=True, exist_ok=True)
    tried = tuple(
        _kept(folder, place, proof, proof.offer.name in serving)
        for place, proof in enumerate(findings.proofs)
    )
    verdict = AccelerationRecord(
        key=key,
        tried=tried,
        ranges=ranges,
        spread=dict(findings.spread),
        seconds=round(seconds, 4),
    )
    verdicts.write_record(folder, verdict)
    return verdict


def fitting(folder: Path, key: AccelerationKey) -> AccelerationRecord | None:
    """The verdict in a folder, if there is one for just this; why not is logged where it should be there."""
    try:
        verdict = verdicts.read_record(folder)
    except DamagedRecordError as error:
        logger.warning("the verdict on faster ways is not used: %s", error)
        return None
    if verdict is not None and verdict.key != key:
        logger.info(
            "the verdict on faster ways is not used: it is one for other libraries or another machine"
        )
        return None
    return verdict


def mount(runtime: Runtime, folder: Path, verdict: AccelerationRecord) -> Switch | None:
    """Have a runtime go the ways of a verdict; None where it says that the plain path serves.

    So it does, too, where a converted form is damaged; that is logged.
    """
    if not isinstance(runtime, Accelerable) or not verdict.is_accelerated:
        return None
    offers = {offer.name: offer for offer in runtime.offers()}
    tried = {one.name: one for one in verdict.tried}
    candidates: dict[str, Candidate] = {}
    try:
        for name in {one.way for one in verdict.ranges} - {PLAIN_STRATEGY}:
            candidates[name] = _candidate(folder, offers[name], tried[name])
    except Exception as error:
        logger.warning("the plain path serves, for a faster way cannot be used: %s", _words(error))
        return None
    ways = [
        (one.rows, runtime.plain if one.way == PLAIN_STRATEGY else candidates[one.way].predict)
        for one in verdict.ranges
    ]
    switch = Switch(runtime.plain, ways, exact=runtime.exact, spread=verdict.spread)
    runtime.use(switch)
    return switch


def _ranges(findings: Findings) -> Iterator[RowRange]:
    for timing, way in findings.chosen():
        yield RowRange(
            rows=timing.rows,
            way=way or PLAIN_STRATEGY,
            seconds=round(timing.ways[way] if way else timing.plain, 9),
            plain_seconds=round(timing.plain, 9),
        )


def _kept(folder: Path, place: int, proof: Proof, serves: bool) -> CandidateOutcome:
    offer, candidate = proof.offer, proof.candidate
    if candidate is None or offer.save is None or not serves:
        return CandidateOutcome(name=offer.name, refused=proof.refused)
    form = f"form-{place}"
    offer.save(candidate, folder / form)
    return CandidateOutcome(name=offer.name, form=form, checksum=verdicts.compute_crc32(folder / form))


def _candidate(folder: Path, offer: Offer, tried: CandidateOutcome) -> Candidate:
    if offer.restore is None or not tried.form:
        return offer.build()
    file = folder / tried.form
    if verdicts.compute_crc32(file) != tried.checksum:
        raise DamagedRecordError(f"{file} is damaged.")
    return offer.restore(file)


def _words(error: Exception) -> str:
    return (
        str(error) if isinstance(error, DamagedRecordError | OSError) else f"{type(error).__name__}: {error}"
    )
