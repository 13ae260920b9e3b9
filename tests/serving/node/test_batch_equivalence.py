from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from serving.acceleration.candidates import Predict
from serving.frameworks import Framework, find_user_code_framework
from serving.model_schema import ModelSchema
from serving.node import batch_equivalence
from serving.node.batch_equivalence import (
    BatchingDecision,
    check_batch_equivalence,
    confirm_batch_equivalence,
    warm_up_model,
    warm_up_model_briefly,
)
from serving.runtimes import ArrayFormat, InputFormat, Runtime, output_equality
from serving.runtimes.instance_batch import Batch
from serving.runtimes.schema_inference import unknown_schema


@dataclass
class Fake:
    """A runtime whose answer may depend on how many rows it is given."""

    drift: float = 0.0
    from_rows: int = 0
    mergeable: bool = True
    exact: bool = False
    framework: Framework = find_user_code_framework()
    warnings: tuple[str, ...] = ()
    calls: int = 0

    def input_format(self, parameters: Mapping[str, Any]) -> InputFormat:
        return ArrayFormat(1, nullable=False)

    def predict(self, instances: Any, /, **parameters: Any) -> Batch:
        self.calls += 1
        many = len(instances) >= self.from_rows > 0
        answer: Batch = instances[:, 0] + (self.drift if many else 0.0)
        return answer

    def make_synthetic_rows(self, count: int) -> Batch | None:
        return np.linspace(1.0, 2.0, count)[:, None]

    def warmup_requests(self) -> list[tuple[Batch, dict[str, Any]]]:
        return []

    def infer_schema(self, examples: Sequence[Any] = ()) -> ModelSchema:
        return unknown_schema("fake")


def judge_merging(runtime: Runtime, faster: Predict | None = None) -> BatchingDecision:
    return output_equality.run_generator(check_batch_equivalence(runtime, faster))


def test_a_prepared_finding_holds_if_a_few_rows_show_nothing_else() -> None:
    prepared = BatchingDecision(True, "prepared", 500)
    good, bad = Fake(exact=True), Fake(drift=1.0, from_rows=2, exact=True)

    assert output_equality.run_generator(confirm_batch_equivalence(good, None, prepared)) == prepared
    assert not output_equality.run_generator(confirm_batch_equivalence(bad, None, prepared)).merge
    assert good.calls < 12


def test_a_prepared_finding_against_batching_costs_no_call() -> None:
    runtime, prepared = Fake(), BatchingDecision(False, "prepared")

    assert output_equality.run_generator(confirm_batch_equivalence(runtime, None, prepared)) == prepared
    assert runtime.calls == 0


ULP = float(np.spacing(2.0))


@pytest.mark.parametrize(
    ("runtime", "merge"),
    [
        (Fake(), True),
        (Fake(mergeable=False), False),
        (Fake(drift=3 * ULP, from_rows=3), True),  # within 4 units in the last place
        (Fake(drift=1e-9, from_rows=64), True),  # the library itself differs by as much, but not for 32 rows
        (Fake(drift=3 * ULP, from_rows=3, exact=True), False),  # labels and trees must not move at all
    ],
)
def test_merging_is_allowed_only_within_the_rule_of_equality(runtime: Fake, merge: bool) -> None:
    """Identical where exact, else no further apart than the library is from itself."""
    assert judge_merging(runtime).merge is merge


@pytest.mark.parametrize(
    ("drift", "from_rows", "merge"), [(0.0, 0, True), (1e-3, 3, False), (1e-3, 1, False), (3 * ULP, 1, True)]
)
def test_requests_share_calls_only_if_the_way_that_serves_allows_it(
    drift: float, from_rows: int, merge: bool
) -> None:
    """It is held to the library's answers to single rows, alone and together."""
    assert judge_merging(Fake(), Fake(drift=drift, from_rows=from_rows).predict).merge is merge


def test_the_plain_path_must_allow_it_too() -> None:
    """It takes over when the faster way is given up."""
    assert not judge_merging(Fake(drift=1.0, from_rows=3, exact=True), Fake().predict).merge


def test_a_slow_model_is_asked_for_fewer_single_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """But in calls of the same sizes."""
    sizes: set[int] = set()

    class Counted(Fake):
        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            sizes.add(len(instances))
            return super().predict(instances)

    ordinary, slow = Counted(exact=True), Counted(exact=True)
    monkeypatch.setattr(batch_equivalence, "_SLOW_SECONDS", 10.0)
    judge_merging(ordinary)
    monkeypatch.setattr(batch_equivalence, "_SLOW_SECONDS", 0.0)
    assert judge_merging(slow) == BatchingDecision(True, "predictions of 32 rows are equal alone and batched")

    assert sizes >= {1, 3, 7, 32}
    assert slow.calls < 0.6 * ordinary.calls


def test_of_large_rows_no_more_are_merged_than_were_tried() -> None:
    """A few of them do, so that they take little memory."""

    class Large(Fake):
        def make_synthetic_rows(self, count: int) -> Batch | None:
            assert count <= 4
            return np.ones((count, 1 << 17))  # a mebibyte each

    verdict = judge_merging(Large())

    assert (verdict.merge, verdict.compute_max_batch_rows(64), verdict.compute_max_batch_rows(2)) == (
        True,
        4,
        2,
    )
    assert warm_up_model(Large(), (64, 1)).seconds is not None


def test_where_merging_is_refused_a_call_has_one_request() -> None:
    assert BatchingDecision(False, "switched off").compute_max_batch_rows(64) == 1


def test_rows_that_influence_each_other_are_found_out() -> None:
    """A model that normalises over its batch is not merged: what the library shows there is no rounding."""

    class Normalizing(Fake):
        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            answer: Batch = instances[:, 0] - instances[:, 0].mean()
            return answer

    verdict = judge_merging(Normalizing())

    assert not verdict.merge
    assert "influence each other" in verdict.reason


def test_a_size_in_which_answers_change_is_found_out() -> None:

    class Batchwise(Fake):
        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            answer: Batch = instances[:, 0] * (2.0 if len(instances) in (3, 7, 32) else 1.0)
            return answer

    verdict = judge_merging(Batchwise())

    assert not verdict.merge
    assert "3 rows are predicted together" in verdict.reason


def test_a_model_that_refuses_made_up_rows_is_neither_merged_nor_broken() -> None:
    """Made-up rows may be refused; that is a reason, not a failure."""

    class Picky(Fake):
        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            raise ValueError("not these")

    assert judge_merging(Picky()).reason == "the check failed: not these"
    assert warm_up_model(Picky(), (1,)).seconds is None


def test_recorded_requests_are_preferred_for_warming() -> None:
    """With recorded warm-up requests nothing is made up."""

    class Recorded(Fake):
        def warmup_requests(self) -> list[tuple[Batch, dict[str, Any]]]:
            return [(np.array([[1.0]]), {})] * 3

    runtime = Recorded()

    assert warm_up_model(runtime, (1, 64)).seconds is not None
    assert runtime.calls == 3


def test_a_brief_warming_runs_one_row_once() -> None:
    """A version that wakes has been through the rest."""
    runtime = Fake()

    warm_up_model_briefly(runtime)

    assert runtime.calls == 1


def test_a_brief_warming_asks_in_every_recorded_way_once() -> None:
    """Each signature has its own first call."""
    asked: list[Any] = []

    class Recorded(Fake):
        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            asked.append((len(instances), parameters))
            return super().predict(instances)

        def warmup_requests(self) -> list[tuple[Batch, dict[str, Any]]]:
            ways: tuple[dict[str, Any], ...] = (
                {},
                {"signature_name": "other"},
                {},
                {"signature_name": "other"},
            )
            return [(np.ones((rows, 1)), way) for rows, way in enumerate(ways, 1)]

    warm_up_model_briefly(Recorded())

    assert asked == [(1, {}), (2, {"signature_name": "other"})]


def test_a_brief_warming_can_be_impossible() -> None:
    """No rows can be made up, or the model refuses them; it is ready all the same."""

    class Picky(Fake):
        def predict(self, instances: Any, /, **parameters: Any) -> Batch:
            raise ValueError("not these")

    class Silent(Fake):
        def make_synthetic_rows(self, count: int) -> None:
            return None

    warm_up_model_briefly(Picky())
    warm_up_model_briefly(silent := Silent())

    assert silent.calls == 0
