"""Models that other projects keep for their own tests, answered as by the libraries that made them.

The repositories are looked for in the folder `TESTS_REPOSITORIES` (git directories named OWNER+NAME, or
`repo` below one), else cloned; where neither is to be had, a test is skipped and says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.errors import LoadFailed
from serving.runtimes import ArrayFormat, ColumnsFormat, LoadSpec, load_model
from serving.runtimes.json_codec import InstancesDecoder, encode_predictions
from tests.compat.environments import ROOT, Unavailable, python_of
from tests.compat.test_xgboost import ENVIRONMENTS, READ

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    # What XGBoost says of objectives with names of old.
    pytest.mark.filterwarnings("ignore:.*is now deprecated in favor of:UserWarning"),
]

_SECONDS = 600
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
PMML = ("jpmml/jpmml-xgboost", "pmml-xgboost/src/test/resources/xgboost/")
PREDICTOR = (
    "komiya-atsushi/xgboost-predictor-java",
    "xgboost-predictor-test/src/main/resources/biz/k11i/xgboost/model/",
)
LEAVES = ("dmitryikh/leaves", "testdata/")
GRAPHS = ("jpmml/jpmml-tensorflow", "src/test/resources/savedmodel/")

# Where a file is, and the version that says what it answers.
BOOSTERS = [
    *((*PMML, f"legacy/{name}.model", "3.0.5") for name in (
        "BinomialClassificationAudit", "GammaRegressionVisit", "HingeClassificationAudit",
        "LinearRegressionAuto", "LogisticRegressionAudit", "MultinomialClassificationAudit",
        "MultinomialClassificationIris", "PoissonRegressionVisit", "TweedieRegressionVisit",
    )),
    *((*PREDICTOR, f"{name}.model", "0.90") for name in (
        "gblinear/v40/binary-logistic", "gblinear/v40/multi-softprob", "gblinear/v47/binary-logitraw",
        "gblinear/v47/multi-softmax", "gbtree/v47/binary-logistic", "gbtree/v47/multi-softprob",
        "gbtree/v47/sms-spam", "gbtree/v47/rank-pairwise", "gbtree/spark/housing", "gbtree/spark/iris",
        "dart/rank-pairwise",
    )),
    *((*LEAVES, f"{name}.model", "0.90") for name in (
        "xgagaricus", "xgblin_agaricus", "xg_dart_agaricus", "xgdermatology",
    )),
    ("dmlc/treelite", "tests/examples/mushroom/", "mushroom.model", "0.90"),
]  # fmt: skip
# Versions before 1.3 (1.4 for DART) added the base score after the trees.
_ROUNDING = 1e-6

SAVED_MODELS = [
    *((*GRAPHS, name) for name in (
        "DNNClassificationAudit", "DNNClassificationIris", "DNNRegressionAuto",
        "LinearClassificationAudit", "LinearClassificationIris", "LinearRegressionAuto",
    )),
    ("onnx/tensorflow-onnx", "tests/models/", "regression/saved_model"),
    ("onnx/tensorflow-onnx", "tests/models/", "saved_model_with_redundant_inputs"),
    ("spotify/zoltar", "zoltar-tests/src/test/resources/", "trained_model"),
    ("serizba/cppflow", "examples/load_model/", "model"),
    ("serizba/cppflow", "examples/multi_input_output/", "model"),
]  # fmt: skip
# What a session answers that has nothing but the model in it.
ASK = """
import base64, json, sys
import numpy as np
import tensorflow as tf

def value(given):
    if isinstance(given, dict):
        return base64.b64decode(given["b64"])
    return [value(one) for one in given] if isinstance(given, list) else given

folder, rows = json.load(sys.stdin)
v1 = tf.compat.v1
with tf.Graph().as_default() as graph, v1.Session() as session:
    signatures = v1.saved_model.load(session, ["serve"], folder).signature_def
    names = [name for name in signatures if not name.startswith("__")]
    definition = signatures[names[0] if len(names) == 1 else "serving_default"]
    feeds = {}
    for alias, info in definition.inputs.items():
        tensor = graph.get_tensor_by_name(info.name)
        bare = len(definition.inputs) == 1
        column = [value(row if bare else row[alias]) for row in rows]
        feeds[tensor] = np.array(column, object if tensor.dtype == tf.string else tensor.dtype.as_numpy_dtype)
    fetches = {alias: info.name for alias, info in definition.outputs.items()}
    answers = session.run(fetches, feeds)
texts = {
    alias: np.vectorize(bytes.decode, otypes=[object])(array) if array.dtype == object else array
    for alias, array in answers.items()
}
json.dump({alias: array.tolist() for alias, array in texts.items()}, sys.stdout)
"""


def _repository(name: str) -> Path:
    """The git directory of a public repository."""
    folder = name.replace("/", "+")
    if kept := os.environ.get("TESTS_REPOSITORIES"):
        for found in (Path(kept, folder, "repo", ".git"), Path(kept, folder, "repo"), Path(kept, folder)):
            if (found / "HEAD").is_file():
                return found
    clone = ROOT / "repositories" / folder
    if not (clone / "HEAD").is_file():
        command = [
            "git",
            "clone",
            "--quiet",
            "--bare",
            "--depth",
            "1",
            f"https://github.com/{name}",
            str(clone),
        ]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{name} cannot be cloned: {error}")
    return clone


def _git(repository: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS).stdout


def _write(repository: Path, path: str, to: Path) -> None:
    """A file of the newest commit, or all files of a folder."""
    names = _git(repository, "ls-tree", "-r", "--name-only", "HEAD", "--", path).decode().splitlines()
    if not names:
        pytest.skip(f"{path} is no longer in {repository.name}")
    for name in names:
        file = to / Path(name).relative_to(path) if name != path else to
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_git(repository, "show", f"HEAD:{name}"))


def _asked(program: str, question: Any, python: Path) -> Any:
    done = subprocess.run(
        [str(python), "-c", program],
        input=json.dumps(question),
        env={**os.environ, **_QUIET},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])  # early versions of XGBoost print warnings before it


@pytest.mark.parametrize(("repository", "folder", "file", "version"), BOOSTERS)
def test_boosters(repository: str, folder: str, file: str, version: str, tmp_path: Path) -> None:
    """Every row as its own version has it; to the last bit if that is 1.3 or later."""
    try:
        python = python_of(ENVIRONMENTS[version])
    except Unavailable as error:
        pytest.skip(f"XGBoost {version}: {error}")
    _write(_repository(repository), folder + file, tmp_path / "model.bst")
    runtime = load_model(LoadSpec(tmp_path))
    form = runtime.input_format({})
    assert isinstance(form, ArrayFormat)
    random = np.random.default_rng(7)
    width = form.width or 1
    rows = np.round(random.normal(size=(20 if width < 10_000 else 2, width)) * 3, 2)

    (wanted,) = _asked(READ, {str(tmp_path / "model.bst"): rows.tolist()}, python).values()

    found = np.array(runtime.predict(rows), np.float32)
    rounding = 0.0 if version == "3.0.5" else _ROUNDING
    np.testing.assert_allclose(found, np.array(wanted, np.float32), rtol=rounding, atol=rounding)


@pytest.mark.parametrize("file", ["LinearRegressionAuto.json", "MultinomialClassificationIris.json"])
def test_files_of_later_versions_are_refused(file: str, tmp_path: Path) -> None:
    """The project saves them anew with each version: those that this one reads, it reads."""
    repository, folder = PMML
    _write(_repository(repository), folder + file, tmp_path / "model.json")
    import xgboost

    written = json.loads((tmp_path / "model.json").read_text())["version"][:2]
    if written <= [int(part) for part in xgboost.__version__.split(".")[:2]]:
        load_model(LoadSpec(tmp_path))
        return
    with pytest.raises(LoadFailed, match="which may read it wrongly"):
        load_model(LoadSpec(tmp_path))


@pytest.mark.parametrize(("repository", "folder", "name"), SAVED_MODELS)
def test_saved_models(repository: str, folder: str, name: str, tmp_path: Path) -> None:
    """The signature that answers if none is named, by a request that was made up for it."""
    _write(_repository(repository), folder + name, tmp_path)
    runtime = load_model(LoadSpec(tmp_path))
    form = runtime.input_format({})
    assert isinstance(form, ColumnsFormat)
    rows = [runtime.infer_schema().example] * (form.fixed_rows or 2)
    batch, _ = InstancesDecoder().decode(json.dumps({"instances": rows}).encode(), runtime.input_format)

    wanted = _asked(ASK, [str(tmp_path), rows], Path(sys.executable))

    found = json.loads(encode_predictions(runtime.predict(batch)))["predictions"]
    assert [row.keys() for row in found] == [wanted.keys()] * len(rows)
    for alias, values in wanted.items():
        got = [row[alias] for row in found]
        if isinstance(np.array(values).ravel()[0], np.str_):
            assert got == values
        else:
            # NaN is null in JSON.
            np.testing.assert_allclose(np.array(got, np.float64), values, rtol=2e-6, atol=1e-7)


def test_a_graph_with_more_tags_is_refused(tmp_path: Path) -> None:
    """As TensorFlow Serving does it."""
    _write(_repository("tensorflow/rust"), "test_resources/regression-model", tmp_path)

    with pytest.raises(LoadFailed, match=r'just the tag "serve" \(found: serve, train\)'):
        load_model(LoadSpec(tmp_path))
