"""Routines whose packages clash with the server's: an environment of their own. A package index is needed."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.end_to_end import models
from tests.server import running_server

CODE = dedent(
    """
    import LIBRARY, sklearn

    class Routine:
        def predict(self, instances, **kwargs):
            return [[LIBRARY.__version__, sklearn.__version__] for _ in instances]

        @classmethod
        def from_path(cls, model_dir):
            return cls()
    """
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("library", "version"), [("numpy", "1.26.4"), ("tensorflow", "2.18.1")])
def test_a_routine_with_another_version_of_a_library(library: str, version: str, tmp_path: Path) -> None:
    """It gets that, and the server's other libraries; the second version of it is made in a fraction."""
    code = {"own/__init__.py": CODE.replace("LIBRARY", library)}
    package = models.wheel(tmp_path, "own", "0.1", code, requires=f"{library}=={version}")
    model = "projects/local/models/m"
    asked = {"packageUris": [str(package)], "predictionClass": "own.Routine"}
    with running_server(tmp_path / "state") as server:
        server.create_model(model)
        operation = server.wait(server.begin_version(f"{model}/versions/v1", **asked), seconds=900)
        if "package index" in str(operation.get("error")):
            pytest.skip(f"{library} {version}: {operation['error']}")
        assert "error" not in operation, operation

        ((found, _),) = server.predict(f"{model}/versions/v1", [1]).json["predictions"]

        assert found == version
        server.create_version(f"{model}/versions/v2", **asked)
        assert server.predict(f"{model}/versions/v2", [1]).json["predictions"][0][0] == version
