from __future__ import annotations

from tests.tuning.algorithms.test_suggestion import X, Y, make_study, run_study
from tests.tuning.spaces import KIND
from tuning.algorithms.importance import measure_importance
from tuning.messages import ImportanceRequest


def test_what_matters_has_the_greater_share() -> None:
    study = make_study(X, Y, KIND)
    trials = tuple(run_study(study, 25, lambda point: 3.0 * float(point["x"]) + 0.5 * float(point["y"])))

    shares = measure_importance(ImportanceRequest(study, trials)).shares

    assert list(shares) == ["x", "y", "kind", "trees", "depth"]
    assert shares["x"] > 0.5
    assert abs(sum(shares.values()) - 1.0) < 1e-9


def test_too_few_trials_tell_nothing() -> None:
    study = make_study(X, Y)

    assert (
        measure_importance(ImportanceRequest(study, tuple(run_study(study, 3, lambda _: 1.0)))).shares == {}
    )
