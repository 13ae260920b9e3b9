"""The pictures' own demo ends with them."""

from __future__ import annotations

import subprocess
import sys

from tests.bounds import HANG_SECONDS

# As in a script that starts it with `&`: SIGINT is ignored, also in what it starts.
_IN_BACKGROUND = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from loadtests import screenshots
screenshots._COMMAND = (
    "import signal; print('Watch it: http://h:1/console/?project=demo'); "
    "print('Requests come until', flush=True); signal.pause()"
)
with screenshots._run_demo() as server:
    print(server)
"""


def test_the_demo_ends_when_started_in_the_background() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IN_BACKGROUND],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )
    assert done.stdout == "http://h:1\n"
