"""TensorFlow's strategies for clusters, as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.jobs import JobRun
from tests.training.strategies import CUSTOM_LOOP, KERAS, PARAMETER_SERVER, QUIET
from training.messages import ReplicaGroup, ReplicaRole

TWO = (ReplicaGroup(ReplicaRole.MASTER), ReplicaGroup(ReplicaRole.WORKER))


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_custom_loop_across_workers(tmp_path: Path) -> None:
    with JobRun(tmp_path, CUSTOM_LOOP, groups=TWO, variables=QUIET) as job:
        last = job.finish()

    assert last.done is not None, last
    assert job.lines()[-1] == "replicas 2 weight 3.0"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_keras_across_workers(tmp_path: Path) -> None:
    """Keras 3 cannot do that; the one before it can."""
    with JobRun(tmp_path, KERAS, groups=TWO, variables={**QUIET, "TF_USE_LEGACY_KERAS": "1"}) as job:
        last = job.finish()

    assert last.done is not None, last
    assert job.lines()[-1] == "losses 2 tf_keras"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_parameter_servers(tmp_path: Path) -> None:
    groups = (*TWO, ReplicaGroup(ReplicaRole.PARAMETER_SERVER))
    with JobRun(tmp_path, PARAMETER_SERVER, groups=groups, variables=QUIET, grace_seconds=1.0) as job:
        last = job.finish()

    assert last.done is not None, last
    assert job.lines()[-1] == "total 10.0"
