"""What the long tests share: models, and lines that tell how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from tests.soak import models

Progress = Callable[[str], None]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, models.Model]:
    """A model of each kind."""
    root = tmp_path_factory.mktemp("trained")
    return {kind: models.write(kind, root / kind) for kind in models.KINDS}


@pytest.fixture
def progress(request: pytest.FixtureRequest) -> Progress:
    """Shows a line at once; the processes of parallel tests have nowhere to show it."""
    terminal = request.config.pluginmanager.getplugin("terminalreporter")
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        if terminal is not None and capture is not None:
            with capture.global_and_fixture_disabled():
                terminal.ensure_newline()
                terminal.write_line(f"{time.strftime('%H:%M:%S')} {line}")

    return tell
