from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.protocols import Dialect
from serving.protocols.paths import PredictionPath, detect_dialect, parse_prediction_path

AI, TF, V2 = Dialect.AI_PLATFORM, Dialect.TENSORFLOW, Dialect.INFERENCE


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/projects/p/models/m:predict", PredictionPath(AI, "predict", "m", "p")),
        ("/v1/projects/p/models/m/versions/v:predict", PredictionPath(AI, "predict", "m", "p", "v")),
        ("/v1/projects/example.com:p/models/m:predict", PredictionPath(AI, "predict", "m", "example.com:p")),
        ("/v1/models/m:predict", PredictionPath(TF, "predict", "m")),
        ("/v1/models/m/versions/3:classify", PredictionPath(TF, "classify", "m", version="3")),
        ("/v1/models/m/labels/canary:regress", PredictionPath(TF, "regress", "m", label="canary")),
        ("/v2/models/m/infer", PredictionPath(V2, "infer", "m")),
        (
            "/v1/projects/p/models/a.b-c/versions/v-1.0:predict",
            PredictionPath(AI, "predict", "a.b-c", "p", "v-1.0"),
        ),
        ("/v1/models/a.b-c/versions/v-1.0:predict", PredictionPath(TF, "predict", "a.b-c", version="v-1.0")),
        ("/v2/models/a.b-c/versions/v-1.0/infer", PredictionPath(V2, "infer", "a.b-c", version="v-1.0")),
        ("/v2/models/m/versions/v3/infer", PredictionPath(V2, "infer", "m", version="v3")),
        ("/v2/models/projects/p/models/m/infer", PredictionPath(V2, "infer", "m", "p")),
        ("/v2/models/projects/p/models/m/versions/3/infer", PredictionPath(V2, "infer", "m", "p", "3")),
        ("/v2/models/projects/infer", PredictionPath(V2, "infer", "projects")),
    ],
)
def test_paths_say_what_is_asked_for(path: str, said: PredictionPath) -> None:
    """Of which model, and of which version."""
    assert parse_prediction_path(path) == said
    assert detect_dialect(path) is said.dialect


@pytest.mark.parametrize(
    "path",
    [
        "/v1/projects/p/models/m:classify",
        "/v1/projects/p/models/m/labels/l:predict",
        "/v1/projects/p/models/m:explain",
        "/v1/models/m",
        "/v1/models/m/metadata",
        "/v1/models/:predict",
        "/v1/models/m/versions/3/labels/l:predict",
        "/v2/models/m",
        "/v2/models/m/ready",
        "/v2/models/m/versions/infer",
        "/v2/models//infer",
        "/v1/projects//models/m:predict",
        "",
    ],
)
def test_other_paths_are_of_no_prediction(path: str) -> None:
    """Whatever they look like."""
    assert parse_prediction_path(path) is None


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v2", V2),
        ("/v2/nothing", V2),
        ("/v2x", AI),
        ("/v1/models/m", TF),
        ("/v1/models", TF),
        ("/v1/modelsx", AI),
    ],
)
def test_errors_are_told_to_those_who_ask(path: str, dialect: Dialect) -> None:
    """In the form of the protocol, also where nothing is."""
    assert detect_dialect(path) is dialect


@given(st.text(alphabet="/v12models:predictnf%.x", max_size=60))
def test_any_text_is_a_path(path: str) -> None:
    """Or none; nothing fails."""
    said = parse_prediction_path(path)

    assert said is None or (said.model and "/" not in said.model)
