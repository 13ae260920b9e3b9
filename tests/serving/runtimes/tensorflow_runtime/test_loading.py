"""SavedModels that cannot be loaded, and what loading does to the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.errors import LoadFailed
from tests.serving.runtimes.conftest import QUIET

# ---- models that cannot be loaded


def broken(models: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(models("dense"), tmp_path / "broken"))


def refused(load: Any, folder: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        load(folder)
    message = caught.value.message
    assert "\n" not in message
    assert str(folder) not in message
    return message


def test_no_model_here_but_one_below(load: Any, models: Any, tmp_path: Path) -> None:
    shutil.copytree(models("dense"), tmp_path / "17")

    assert "There is one in its folder 17: use that as deploymentUri" in refused(load, tmp_path)


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_model_file_cut_short(load: Any, models: Any, tmp_path: Path, keep: float) -> None:
    folder = broken(models, tmp_path)
    whole = (folder / "saved_model.pb").read_bytes()
    (folder / "saved_model.pb").write_bytes(whole[: int(len(whole) * keep)])

    assert "is cut short or is not a SavedModel" in refused(load, folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [("saved_model.pb", b"no"), ("saved_model.pbtxt", b"no"), ("saved_model.pbtxt", b"\xff")],
)
def test_a_file_that_is_no_model(load: Any, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    assert "is cut short or is not a SavedModel" in refused(load, tmp_path)


def test_an_empty_model_file(load: Any, tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()

    assert "(found: no graph at all)" in refused(load, tmp_path)


@pytest.mark.parametrize("missing", ["variables", "variables/variables.data-00000-of-00001"])
def test_variables_are_missing(load: Any, models: Any, tmp_path: Path, missing: str) -> None:
    folder = broken(models, tmp_path)
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert "Check that the exported folder was copied whole, with variables/" in refused(load, folder)


def test_variables_are_cut_short(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)
    (folder / "variables" / "variables.data-00000-of-00001").write_bytes(b"")

    message = refused(load, folder)

    assert "cannot load the SavedModel: Read less bytes than requested. " in message
    assert "copied whole" in message


@pytest.mark.parametrize("inside", ["a function", "a function behind a long text"])
def test_an_op_that_only_a_function_names(load: Any, models: Any, tmp_path: Path, inside: str) -> None:
    """However long the names are that surround it in what TensorFlow says."""
    folder = broken(models, tmp_path)

    def rename(graph: Any) -> None:
        nodes = [node for one in graph.library.function for node in one.node_def if node.op == "Softmax"]
        assert nodes
        for node in nodes:
            node.op = "FancySoftmax"
            if inside != "a function":
                node.name = "long_name" * 100

    edit_graph(folder, rename)

    message = refused(load, folder)

    assert "The graph uses the op FancySoftmax, which TensorFlow" in message
    assert "copied whole" not in message


def test_a_graph_that_is_wrong_is_not_blamed_on_the_copy(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)

    def spoil(graph: Any) -> None:
        for one in graph.library.function:
            for node in one.node_def:
                if node.op == "Softmax":
                    del node.attr["T"]

    edit_graph(folder, spoil)

    message = refused(load, folder)

    assert "attr not found: T" in message
    assert "Export the model again" in message
    assert "copied whole" not in message


def edit_graph(folder: Path, edit: Callable[[Any], None]) -> None:
    """Change the graph of a SavedModel."""
    from tensorflow.core.protobuf import saved_model_pb2

    file = folder / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    edit(saved.meta_graphs[0].graph_def)
    file.write_bytes(saved.SerializeToString())


@pytest.mark.parametrize(
    "text",
    [
        "Graph execution error:\n\n\tNode: x\nOp type not registered 'Fancy' in binary running on vm.",
        f"{'x' * 3000} No op named Fancy in defined operations.",
    ],
)
def test_an_op_is_found_in_the_whole_text_and_its_causes(models: Any, tmp_path: Path, text: str) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import _to_load_error

    error = RuntimeError("Graph execution error:")
    error.__cause__ = ValueError(text)

    assert "The graph uses the op Fancy, which" in _to_load_error(error, tmp_path).message


def test_another_tag(load: Any, models: Any) -> None:
    assert 'no graph with just the tag "serve" (found: serve, tpu)' in refused(load, models("other_tag"))


def test_no_signature(load: Any, models: Any) -> None:
    assert "The SavedModel has no signature" in refused(load, models("no_signature"))


def test_an_op_that_is_not_there(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)
    pb = folder / "saved_model.pb"
    pb.write_bytes(pb.read_bytes().replace(b"Softmax", b"Hardmax").replace(b"MatMul", b"MadMul"))

    assert "assets.extra/ as a .so file" in refused(load, folder)


def test_custom_ops_that_cannot_be_loaded(load: Any, models: Any, tmp_path: Path) -> None:
    folder = broken(models, tmp_path)
    (folder / "assets.extra").mkdir()
    (folder / "assets.extra" / "ops.so").write_bytes(b"no library")

    assert "assets.extra/ops.so cannot be loaded as custom ops: ops.so" in refused(load, folder).replace(
        "assets.extra/ops.so: ", "ops.so: "
    )


# ---- the process


def test_threads_and_import_in_a_fresh_process(models: Any) -> None:
    """Importing starts no thread beyond TensorFlow's own import, and the eager runtime is never begun."""
    program = """if True:
        import os, sys, logging
        import numpy as np
        import tensorflow
        def threads(): return len(os.listdir("/proc/self/task"))
        before = threads()
        from pathlib import Path
        from serving.runtimes import LoadSpec
        from serving.runtimes.tensorflow_runtime import runtime
        assert threads() == before, "the import started a thread"
        loaded = runtime.load_model(LoadSpec(Path(sys.argv[1]), threads=1))
        loaded.predict(loaded.make_synthetic_rows(64))
        from tensorflow.python.eager import context
        assert not context.context()._initialized
        assert threads() - before <= 4, threads() - before
        assert not any(name.startswith(("xgboost", "tensorflow_serving")) for name in sys.modules)
    """
    run = subprocess.run(
        [sys.executable, "-c", program, str(models("dense"))],
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert "deprecated" not in run.stderr
