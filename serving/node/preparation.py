"""Verifies a model once, for nodes that serve it later, perhaps on other machines of the same kind."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from serving.acceleration.activation import activate_fast_path
from serving.acceleration.verification_process import (
    NO_CANDIDATES,
    VerificationOrder,
    is_verified_first,
    run_in_subprocess,
)
from serving.acceleration_record import AccelerationRecord, BatchingFinding, without_forms
from serving.node.acceleration_controller import compute_key
from serving.node.batch_equivalence import BatchEquivalenceCheck, check_batch_equivalence
from serving.runtimes import LoadSpec, load_model
from serving.runtimes.thread_limit import ThreadLimit
from serving.scratch_folders import scratch_folder


def find_obstacle(source: LoadSpec) -> str:
    """Why a model has nothing that could be prepared, "" if it may have."""
    if source.external is not None:
        return "Another interpreter computes the model."
    if source.packages or source.prediction_class:
        return "User code is always computed as it is."
    if source.method not in ("", "predict"):
        return "Only predict is accelerated."
    return "" if is_verified_first(source) else NO_CANDIDATES


def prepare_record(source: LoadSpec) -> AccelerationRecord:
    """What a verification of the model and of batching finds; with a `failure` if there is none.

    Converted models are left out: a node makes them itself, of files whose digest it knows. This process must
    have a single thread. Raises LoadFailed and OSError.
    """
    key = compute_key(source.model_dir)
    with scratch_folder("prepare") as folder:
        found = run_in_subprocess(VerificationOrder.from_load_spec(source, folder, key))
    record = without_forms(found)
    if record.failure:
        return record
    ThreadLimit(source.threads).apply()
    runtime = load_model(source)
    check = BatchEquivalenceCheck(
        check_batch_equivalence(runtime, activate_fast_path(runtime, Path(), record))
    )
    check.run_for(math.inf)
    batching = check.decision and BatchingFinding(
        check.decision.merge, check.decision.reason, check.decision.max_rows
    )
    return msgspec.structs.replace(record, batching=batching)
