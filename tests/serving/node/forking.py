"""A pilot by hand: `python -m tests.serving.node.forking FOLDER REHEARSAL MODULE...` imports the modules,
then forks a node for each model in FOLDER, one after the other, has it rehearse, and asks for a prediction.

It prints one JSON object: its `threads` after the imports, and for each model the `answer` of its node, the
`threads` of that after the rehearsal, and the `new` modules that it imported after the fork. FOLDER/NAME
holds the model's files, and FOLDER/NAME.json the node's arguments with the `body` to ask with. By itself it
imports no more than a pilot.
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SECONDS = 60
# As serving.transport.framing has them, which is not to be imported before the fork.
_REQUEST, _ANSWER = struct.Struct("<BBIIdIQ"), struct.Struct("<IHIQ")


def main(folder: Path, rehearsal: str, *preload: str) -> None:
    """Be the pilot."""
    for module in preload:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    threads = _threads()
    if "tensorflow" in sys.modules:
        _run(lambda: _save(folder))
    found = {file.stem: _node(folder / file.stem, rehearsal) for file in sorted(folder.glob("*.json"))}
    print(json.dumps({"threads": threads, "models": found}))


def _run(work: Any) -> None:
    """Do work in a fork of its own."""
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def _node(model_dir: Path, rehearsal: str) -> dict[str, Any]:
    arguments = json.loads(model_dir.with_suffix(".json").read_text())
    body = arguments.pop("body")
    address = f"{model_dir}.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    ours, theirs = socket.socketpair()
    board = mmap.mmap(-1, 4)
    before = frozenset(sys.modules)
    pid = os.fork()
    if not pid:
        ours.close()
        threads = _rehearse(rehearsal)
        _be_node({"model_dir": str(model_dir), **arguments}, listener, theirs, board, before, threads)
    theirs.close()
    reports = ours.makefile()
    try:
        assert select.select([ours], [], [], _SECONDS)[0], f"{model_dir.name} is not ready"
        report = json.loads(reports.readline() or "{}")
        assert "ready" in report, report
        answer = _ask(address, body)
        os.kill(pid, signal.SIGTERM)
        told = json.loads(reports.readline())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"answer": answer, **told, "board": list(board[:]), "report": report["ready"]}


def _rehearse(rehearsal: str) -> int:
    """Returns how many threads there are afterwards."""
    if rehearsal:
        module, _, function = rehearsal.partition(":")
        for _ in getattr(importlib.import_module(module), function)():
            pass
    return _threads()


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _be_node(
    arguments: Mapping[str, Any],
    listener: socket.socket,
    control: socket.socket,
    board: mmap.mmap,
    before: frozenset[str],
    threads: int,
) -> None:
    def report(message: Any) -> None:
        control.sendall(json.dumps(message).encode() + b"\n")

    try:
        start = importlib.import_module("serving.node.main").start
        start(arguments, listener, report, board)
        report({"new": sorted(sys.modules.keys() - before), "threads": threads})
    finally:
        os._exit(1)


def _ask(address: str, body: Any) -> Any:
    content = json.dumps(body).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(address)
        connection.sendall(_REQUEST.pack(1, 2, 7, 2, _SECONDS, 0, len(content)) + content)
        received = connection.makefile("rb")
        number, status, lines, length = _ANSWER.unpack(received.read(_ANSWER.size))
        answer = received.read(length)
    assert (number, status) == (7, 200), answer
    assert b"infer;dur=" in answer[:lines], answer
    return json.loads(answer[lines:])


def _save(folder: Path) -> None:
    """SavedModels with weights, with tables and with neither, and a routine that uses one of them."""
    import tensorflow as tf

    class Doubling(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])  # type: ignore[untyped-decorator]
        def double(self, x: Any) -> Any:
            return {"doubled": 2 * x}

    module = Doubling()
    tf.saved_model.save(module, str(folder / "function"), signatures={"serving_default": module.double})
    layers = [tf.keras.Input((3,)), tf.keras.layers.Dense(2, kernel_initializer="ones")]
    tf.keras.Sequential(layers).export(str(folder / "keras"), verbose=False)
    words = tf.keras.Input((1,), dtype="string", name="word")
    numbers = tf.keras.Input((1,), name="number")
    looked_up = tf.keras.layers.StringLookup(vocabulary=["a", "b"])(words)
    summed = tf.keras.layers.Add()([tf.keras.layers.CategoryEncoding(3)(looked_up), numbers])
    tf.keras.Model([words, numbers], summed).export(str(folder / "tables"), verbose=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
