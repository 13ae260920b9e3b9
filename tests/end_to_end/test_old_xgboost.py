"""Binary files of XGBoost, deployed as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.server import Server

DATA = Path(__file__).parents[1] / "data" / "xgboost"
MODEL = "projects/tests/models/old_xgboost"


def test_binary_files_are_converted_or_refused(server: Server, tmp_path: Path) -> None:
    """The operation warns, and nodes answer as the version that wrote the file; what is cut off fails."""
    expected = json.loads((DATA / "1.7.6-softprob.json").read_text())
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    shutil.copy(DATA / "1.7.6-softprob.bst", tmp_path / "whole" / "model.bst")
    (tmp_path / "cut" / "model.bst").write_bytes((DATA / "1.7.6-softprob.bst").read_bytes()[:3000])
    server.create_model(MODEL)

    whole = server.begin_version(f"{MODEL}/versions/whole", deploymentUri=str(tmp_path / "whole"))
    cut = server.begin_version(f"{MODEL}/versions/cut", deploymentUri=str(tmp_path / "cut"))
    created, failed = server.wait(whole), server.wait(cut)
    answer = server.predict(f"{MODEL}/versions/whole", expected["instances"])

    text = "model.bst is in the old binary format of XGBoost 1.7; it was converted."
    assert text in created["metadata"]["warnings"]
    assert answer.json["predictions"] == [pytest.approx(row, rel=1e-7) for row in expected["predict"]]
    assert "cut off after 3000 bytes" in failed["error"]["message"]
    assert "pip install 'xgboost<3.1'" in failed["error"]["message"]
