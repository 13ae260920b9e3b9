"""Stores the result of a verification as an acceleration record, and sets a runtime's fast path from one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec

from serving import acceleration_record
from serving.acceleration.candidates import AccelerableRuntime, BuiltCandidate, Candidate
from serving.acceleration.dispatch import FastPathDispatcher
from serving.acceleration.verification import (
    CandidateResult,
    ReferenceAnswers,
    VerifiableRuntime,
    VerificationResult,
    compute_typical_reference,
    find_difference,
)
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


def store_result(
    folder: Path, key: AccelerationKey, result: VerificationResult, seconds: float
) -> AccelerationRecord:
    """Writes the converted models of the chosen candidates, then the record. Raises OSError."""
    ranges = tuple(_choose_ranges(result))
    chosen = {one.way for one in ranges}
    folder.mkdir(parents=True, exist_ok=True)
    tried = tuple(
        _store_candidate(folder, number, proof, proof.candidate.name in chosen)
        for number, proof in enumerate(result.proofs)
    )
    record = AccelerationRecord(
        key=key,
        tried=tried,
        ranges=ranges,
        spread=dict(result.library_spread),
        seconds=round(seconds, 4),
    )
    acceleration_record.write_record(folder, record)
    return record


def read_matching_record(folder: Path, key: AccelerationKey) -> AccelerationRecord | None:
    """The record in a folder, None if there is none with this key. Logs why a record is ignored."""
    try:
        record = acceleration_record.read_record(folder)
    except DamagedRecordError as error:
        logger.warning("the acceleration record is ignored: %s", error)
        return None
    if record is not None and record.key != key:
        logger.info(
            "the acceleration record in %s is ignored: it is for %s",
            folder,
            record.key.describe_mismatch(key),
        )
        return None
    return record


def activate_fast_path(
    runtime: Runtime, folder: Path, record: AccelerationRecord
) -> FastPathDispatcher | None:
    """Sets the runtime's fast path as the record says; None if the reference predicts everything.

    That is the case too if a candidate cannot be restored, which is logged.
    """
    if not isinstance(runtime, AccelerableRuntime) or not record.is_accelerated:
        return None
    candidates = {candidate.name: candidate for candidate in runtime.list_candidates()}
    outcomes = {outcome.name: outcome for outcome in record.tried}
    built: dict[str, BuiltCandidate] = {}
    try:
        for name in {one.way for one in record.ranges} - {PLAIN_STRATEGY}:
            built[name] = _restore_candidate(folder, candidates[name], outcomes[name])
    except Exception as error:
        logger.warning(
            "predictions are not accelerated: a stored candidate cannot be restored: %s",
            _describe_error(error),
        )
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


def activate_prepared(runtime: Runtime, record: AccelerationRecord) -> tuple[FastPathDispatcher | None, str]:
    """The same for a prepared record; and why that cannot be used, "" if it can.

    Anybody may have written it. So candidates are built from the model itself, and compared with the
    reference on typical rows before they are used.
    """
    if not isinstance(runtime, AccelerableRuntime) or not record.is_accelerated:
        return None, ""
    try:
        reference = compute_typical_reference(cast(VerifiableRuntime, runtime))
        if reference is None:
            return None, "no rows can be made for the model"
        record = msgspec.structs.replace(
            acceleration_record.without_forms(record), spread=dict(reference.library_spread)
        )
        dispatcher = activate_fast_path(runtime, Path(), record)
        wrong = "" if dispatcher is None else _find_fault(dispatcher, reference)
    except Exception as error:
        dispatcher, wrong = None, f"it raised {_describe_error(error)}"
    if wrong:
        runtime.set_fast_path(None)
        return None, wrong
    return dispatcher, ""


def _find_fault(dispatcher: FastPathDispatcher, reference: ReferenceAnswers) -> str:
    """Why a dispatcher is not to be used for these rows, "" if it is."""
    errors: list[str] = []
    dispatcher.on_withdrawn = errors.append
    wrong = find_difference(dispatcher, reference)
    return wrong or "".join(errors)


def _choose_ranges(result: VerificationResult) -> Iterator[RowRange]:
    for timing, name in result.choose_strategies():
        yield RowRange(
            rows=timing.rows,
            way=name or PLAIN_STRATEGY,
            seconds=round(timing.strategies[name] if name else timing.reference, 9),
            plain_seconds=round(timing.reference, 9),
        )


def _store_candidate(folder: Path, number: int, proof: CandidateResult, is_chosen: bool) -> CandidateOutcome:
    candidate, built = proof.candidate, proof.built
    if built is None or candidate.save is None or not is_chosen:
        return CandidateOutcome(name=candidate.name, refused=proof.refused)
    form = f"form-{number}"
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
