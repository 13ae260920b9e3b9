"""`pilotlight local batch` as a process, on rows that are the same for models of every kind."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.batch.engines.clusters import WORKERS
from tests.batch.engines.sample_models import BUILDERS, COLUMNS
from tests.bounds import JOB_SECONDS
from tests.server import until

# One of so many lines is no record.
BAD_EVERY = 50
EMBEDDED = "FnApiRunner"
_FILES = 8


@dataclass(frozen=True)
class Input:
    """A model of one kind, the flags that go with it, and the folder with `in`, the rows."""

    root: Path
    model: Path
    flags: tuple[str, ...]


def write_rows(folder: Path, rows: int) -> None:
    """Rows of numbers as JSON lines, one of `BAD_EVERY` of which is none."""
    generator = np.random.default_rng(0)
    folder.mkdir()
    for part in range(_FILES):
        some = np.round(generator.normal(size=(rows // _FILES, COLUMNS)), 6).tolist()
        with (folder / f"part-{part}.jsonl").open("w") as file:
            for number, row in enumerate(some):
                is_bad = number % BAD_EVERY == 7
                file.write("[1, 2, nonsense\n" if is_bad else json.dumps(row) + "\n")


def build_input(root: Path, kind: str) -> Input:
    """A model of this kind for the rows in `root`."""
    model = root / kind / "model"
    model.mkdir(parents=True)
    return Input(root, model, tuple(BUILDERS[kind](model)))


def read_results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("prediction.*")}


class Batch:
    """`pilotlight local batch` on the rows, at work. `begun` is of the monotonic clock."""

    def __init__(self, given: Input, output: Path, runner: str, options: str = "", *flags: str) -> None:
        code = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from serving.cli import main; main()"
        )
        line = (
            f"local batch --model-dir {given.model} --input-paths {given.root}/in/* --output-path {output} "
            f"--runner {runner} --max-worker-count {WORKERS}"
        )
        self.output = output
        self.log = output.with_suffix(".log")
        self.begun, self.begun_at = time.monotonic(), time.time()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", code, *shlex.split(line)),
                    *(("--pipeline-options", options) if options else ()),
                    *given.flags,
                    *flags,
                ],
                stdout=log,
                stderr=log,
            )

    def wait(self, code: int = 0) -> float:
        """How many seconds it took."""
        assert self.process.wait(JOB_SECONDS * 2) == code, self.said
        return time.monotonic() - self.begun

    @property
    def said(self) -> str:
        return self.log.read_text()

    def sealed(self) -> int:
        return len(list(self.output.glob(".pilotlight/*/*/sealed/*.json")))

    def has_begun(self) -> bool:
        """Whether a worker has results of its first block."""
        return any(self.output.glob(".pilotlight/*/*/pieces/*"))

    def pieces(self) -> set[str]:
        return {path.name for path in self.output.glob(".pilotlight/*/*/pieces/*.results")}

    def until_sealed(self, count: int = 1) -> None:
        until(
            lambda: self.sealed() >= count or self.process.poll() is not None,
            f"{count} shards",
            seconds=JOB_SECONDS,
        )
        assert self.process.poll() is None, self.said

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)

    def left(self) -> list[Path]:
        return [path for path in self.output.rglob("*") if path.is_file()]


@contextmanager
def batch(given: Input, output: Path, runner: str, options: str, *flags: str) -> Iterator[Batch]:
    started = Batch(given, output, runner, options, *flags)
    try:
        yield started
    finally:
        started.end()


def environment(kind: str, root: Path, address: str = "", script: str = "") -> str:
    """Beam's options for workers of our own boot or pool; `address` is its HOST:PORT or JSON with a token."""
    if kind == "EXTERNAL":
        return f"--environment_type=EXTERNAL --environment_config={shlex.quote(address)}"
    program = root / f"start-worker-{abs(hash(script)) % 10_000}"
    program.write_text(script or f'#!/bin/sh\nexec {sys.executable} -m batch.boot "$@"\n')
    program.chmod(0o755)
    config = json.dumps({"command": str(program)}, separators=(",", ":"))
    return f"--environment_type=PROCESS --environment_config={shlex.quote(config)}"
