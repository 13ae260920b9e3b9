"""The README's promises, kept by running them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server import running_server

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "http://127.0.0.1:8080"
# Blocks that begin with these are for a machine of one's own.
OTHERS = ("pip install", "make demo")


def examples() -> list[tuple[str, str]]:
    """The code blocks up to the end of the section about clients: language and code."""
    text = README.read_text()
    section = text[: text.index("\n## ", text.index("\n## From a client") + 1)]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [(language, code) for language, code in blocks if not code.startswith(OTHERS)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="one of the examples needs curl")
def test_the_readmes_examples_run_as_they_stand(tmp_path: Path) -> None:
    """Each block, in order, in one folder, against one server; the last ones print a prediction."""
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with running_server(tmp_path / "state") as server:
        environment = {**os.environ, "PATH": commands, "PILOTLIGHT_SERVER": server.url, "PWD": str(tmp_path)}
        printed = []
        for language, code in examples():
            program = [sys.executable, "-c"] if language == "python" else ["bash", "-euc"]
            done = subprocess.run(
                [*program, code.replace(ADDRESS, server.url)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed.append(done.stdout)

    _train, by_command, by_curl, by_client = printed
    assert by_command.splitlines()[-2:] == ["[0]", '{"predictions":[0]}']
    assert by_curl.endswith('{"predictions":[0]}')
    assert by_client == "[0]\n"
