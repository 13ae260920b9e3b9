from __future__ import annotations

import shlex
import sys
from pathlib import Path

from loadtests.bench import compare_checkouts
from loadtests.bench.targets.servers import SERVERS


def test_the_other_state_runs_by_its_own_interpreter_in_its_own_folder() -> None:
    """Nothing of ours is on its path."""
    checkout = Path("/other checkout")

    before = compare_checkouts.server_of_checkout(SERVERS["node"], checkout)

    command = shlex.split(before.command.format(port=1, model_dir="m"))
    assert command[:4] == ["env", "-C", str(checkout), str(checkout / ".venv/bin/python")]
    assert sys.executable not in command
    assert before.path == SERVERS["node"].path
    assert before.name != SERVERS["node"].name
