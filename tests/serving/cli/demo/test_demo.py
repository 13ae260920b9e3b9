"""What `--stay` adds to the demo, and how it ends early: the rest of it is `make demo` itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.bounds import HANG_SECONDS

_PROGRAM = """
import sys
from pathlib import Path
import httpx
from serving.cli.demo import demo
demo._TURN_SECONDS, demo._PAUSE_SECONDS = 0.2, 0.01
models = [demo.TrainedModel(kind, Path(), [[1]], [1]) for kind in sys.argv[2:]]
with httpx.Client(base_url=sys.argv[1]) as plain:
    demo._send_traffic(plain, models)
print("after", flush=True)
"""

_TRAINS_FOREVER = """
import signal, sys
from serving.cli import main
from serving.cli.demo import demo
def train(*_):
    print("begun", flush=True)
    signal.pause()
demo._train_models = train
main(["demo"])
"""


class _Answers(BaseHTTPRequestHandler):
    asked: ClassVar[Counter[str]] = Counter()
    some = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.asked[self.path] += 1
        if len(self.asked) == 3:
            self.some.set()
        body = json.dumps({"predictions": [1]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_traffic_goes_to_all_models_until_it_is_interrupted(address: str) -> None:
    """Also over a server that is gone before."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, address, "scikit-learn", "xgboost", "custom"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert _Answers.some.wait(HANG_SECONDS)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=HANG_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out.endswith("after\n")
    models = "/v1/projects/demo/models/"
    assert _Answers.asked.keys() == {
        f"{models}{one}:predict" for one in ("scikit_learn", "xgboost", "custom")
    }
    assert _Answers.asked.most_common(1)[0][0] == f"{models}scikit_learn:predict"


def test_a_demo_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    """As after Ctrl-C, which does not reach what a script has started in the background."""
    process = subprocess.Popen(
        [sys.executable, "-c", _TRAINS_FOREVER],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "begun\n":
                assert line, "it ended"
            assert list(tmp_path.iterdir())
            process.terminate()
            assert process.wait(HANG_SECONDS) == 130
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []
