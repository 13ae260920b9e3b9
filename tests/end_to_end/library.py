"""What TensorFlow itself makes of files, for the tests of batch prediction.

`python -m tests.end_to_end.library SAVED_MODEL FOLDER` writes TFRecord files, a SavedModel that takes one
string, and what both models answer; in a process of its own, see `tests.end_to_end.models`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bounds import HANG_SECONDS

ROWS = [[number / 8, -number] for number in range(150)]
# One looks like JSON, one is empty, one holds a line end: a record of a TFRecord file may.
WORDS = ["plain", '{"x": 1}', "", "zwei\nZeilen", "größer", *(f"word {number}" for number in range(95))]


@dataclass(frozen=True)
class Library:
    """`numbers` are compressed records for the first model, `words` records for `model`, and the answers."""

    numbers: Path
    words: Path
    model: Path
    doubled: list[Any]
    lengths: list[Any]


def write(saved_model: Path, folder: Path) -> Library:
    """Have everything written."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", __name__, str(saved_model), str(folder)]
    subprocess.run(command, env=environment, check=True, timeout=HANG_SECONDS)
    answers = json.loads((folder / "answers.json").read_text())
    return Library(folder / "numbers.gz", folder / "words", folder / "model", **answers)


def _write(saved_model: str, folder: Path) -> None:
    import tensorflow as tf

    class Lengths(tf.Module):  # type: ignore[misc]  # TensorFlow has no types
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "s")])  # type: ignore[untyped-decorator]
        def lengths(self, s: Any) -> dict[str, Any]:
            return {"length": tf.strings.length(s), "text": s}

    folder.mkdir(parents=True)
    with tf.io.TFRecordWriter(str(folder / "numbers.gz"), "GZIP") as file:
        for row in ROWS:
            file.write(json.dumps(row).encode())
    with tf.io.TFRecordWriter(str(folder / "words")) as file:
        for word in WORDS:
            file.write(word.encode())
    module = Lengths()
    tf.saved_model.save(module, str(folder / "model"), signatures={"serving_default": module.lengths})
    double = tf.saved_model.load(saved_model).signatures["serving_default"]
    answers = {
        "doubled": double(x=tf.constant(ROWS, tf.float32))["doubled"].numpy().tolist(),
        "lengths": module.lengths(tf.constant(WORDS))["length"].numpy().tolist(),
    }
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    _write(sys.argv[1], Path(sys.argv[2]))
