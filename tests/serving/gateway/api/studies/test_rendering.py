from __future__ import annotations

from serving.gateway.api.studies.rendering import TrialRenderer
from tests.serving.gateway.catalog.study_world import StudyWorld
from tuning.study import Trial


def test_stored_trials_that_are_not_in_the_space_are_listed_all_the_same() -> None:
    renderer = TrialRenderer(StudyWorld().snapshot.record)
    foreign = Trial(number=2, parameters={"unknown": 1, "other": 0.5, "x": "text", "depth": 2.5})

    answer = renderer.render_all([Trial(number=1, parameters={"x": 1, "depth": 3}), foreign])

    assert [one["parameters"] for one in answer["trials"]] == [
        [{"parameter": "x", "floatValue": 1.0}, {"parameter": "depth", "intValue": "3"}],
        [
            {"parameter": "unknown", "intValue": "1"},
            {"parameter": "other", "floatValue": 0.5},
            {"parameter": "x", "stringValue": "text"},
            {"parameter": "depth", "floatValue": 2.5},
        ],
    ]
