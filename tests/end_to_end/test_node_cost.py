"""`pilotlight node` against the barest script that loads the same model and predicts once."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest

WIDTH = 4
MIB = 1 << 20
_SCRIPTS = {
    "scikit-learn": """
import joblib
model = joblib.load(f"{folder}/model.joblib")
model.predict(rows)
""",
    "xgboost": """
import xgboost
model = xgboost.Booster(model_file=f"{folder}/model.bst")
model.predict(xgboost.DMatrix(rows))
""",
    "tensorflow": """
import tensorflow as tf
model = tf.saved_model.load(folder)
model.signatures["serving_default"](x=tf.constant(rows, tf.float32))
""",
}
_MAIN = "from serving.cli import main; main()"
_BEGIN = "import sys; import numpy as np; folder = sys.argv[1]; rows = np.array([[1.0, 2.0, 3.0, 4.0]])"
_END = "print('predicted', flush=True); input()"


def linear(folder: Path) -> None:
    """A logistic regression."""
    import joblib
    from sklearn.linear_model import LogisticRegression

    rows = np.random.default_rng(0).normal(size=(100, WIDTH))
    joblib.dump(LogisticRegression().fit(rows, rows.argmax(axis=1)), folder / "model.joblib")


def boosted(folder: Path) -> None:
    """A Booster of a few trees."""
    import xgboost

    rows = np.random.default_rng(0).normal(size=(100, WIDTH))
    data = xgboost.DMatrix(rows, rows.sum(axis=1))
    xgboost.train({"max_depth": 3, "nthread": 1}, data, 20).save_model(folder / "model.ubj")
    (folder / "model.ubj").rename(folder / "model.bst")


def dense(folder: Path) -> None:
    """A SavedModel with one product in it, written by another process: this one stays without TensorFlow."""
    code = """
import sys, tensorflow as tf
class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
    def serve(self, x):
        return {"y": tf.reduce_sum(x, axis=1)}
model = Model()
tf.saved_model.save(model, sys.argv[1], signatures=model.serve)
"""
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, stderr=subprocess.DEVNULL)


class Cost(NamedTuple):
    """From a process's start to its first prediction in seconds, and the bytes that it then has in memory.

    Those of libraries count whoever else has them: another test may come and go.
    """

    seconds: float
    memory: int


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the interpreter, ended at the end of the block."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.terminate()


def word_of(running: subprocess.Popen[str], word: str) -> str:
    """The line that holds a word."""
    return next(line for line in running.stdout or () if word in line)


def cost_of_script(folder: Path, framework: str) -> Cost:
    begin = time.perf_counter()
    with process("-c", "\n".join((_BEGIN, _SCRIPTS[framework], _END)), str(folder)) as running:
        assert word_of(running, "predicted")
        return Cost(time.perf_counter() - begin, psutil.Process(running.pid).memory_info().rss)


def cost_of_node(folder: Path) -> Cost:
    command = (
        "-c",
        "from serving.cli import main; main()",
        "node",
        "--port",
        "0",
        "--model-dir",
        str(folder),
    )
    begin = time.perf_counter()
    with process(*command) as running:
        address = word_of(running, "http://").split("http://")[1].split(": ")[0]
        connection = http.client.HTTPConnection(address)
        connection.request("POST", "/v1/models/m:predict", json.dumps({"instances": [[1, 2, 3, 4]]}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        seconds = time.perf_counter() - begin
        connection.close()
        return Cost(seconds, psutil.Process(running.pid).memory_info().rss)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("framework", "write", "longest"),
    [
        ("scikit-learn", linear, 1.3),
        ("xgboost", boosted, 1.3),
        pytest.param("tensorflow", dense, 1.1, marks=pytest.mark.soak),
    ],
)
def test_a_node_costs_little_more_than_a_script(
    framework: str, write: Callable[[Path], None], longest: float, tmp_path: Path
) -> None:
    """At most 40 MiB and so many times its start.

    By turns, and of all together, three at least: a machine may change its speed from one to the next.
    """
    write(tmp_path)
    scripts, nodes = [], []
    for turn in range(12):
        scripts.append(cost_of_script(tmp_path, framework))
        nodes.append(cost_of_node(tmp_path))
        ratio = sum(node.seconds for node in nodes) / sum(script.seconds for script in scripts)
        more = min(node.memory for node in nodes) - min(script.memory for script in scripts)
        if turn >= 2 and ratio <= longest and more <= 40 * MIB:
            return
    raise AssertionError(
        f"{ratio:.2f} times its start, {more >> 20} MiB more: nodes {nodes}, scripts {scripts}"
    )
