from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from serving.errors import LoadFailed
from serving.runtimes.onnx_runtime.session import clean_message, open_session, run_session
from tests.serving.runtimes.onnx_runtime.models import FLOAT, STRING, make_identity, make_model, write

VERSION = onnxruntime.__version__.replace(".", r"\.")


def open_model(model: onnx.ModelProto, folder: Path) -> None:
    open_session(write(model, folder) / "model.onnx", 1)


def with_weights_in(location: str, folder: Path) -> onnx.ModelProto:
    """A model that adds numbers which lie in another file."""
    np.array([1, 2], np.float32).tofile(folder / "secret.bin")
    weights = onnx.TensorProto(name="w", data_type=FLOAT, dims=[2], data_location=onnx.TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    return make_model([("x", FLOAT, [2])], [("y", FLOAT, [2])], [("Add", ["x", "w"], ["y"])], [weights])


def test_weights_beside_the_model(tmp_path: Path) -> None:
    model = with_weights_in("model.onnx.data", tmp_path)
    (tmp_path / "secret.bin").rename(tmp_path / "model.onnx.data")
    session = open_session(write(model, tmp_path) / "model.onnx", 1)

    assert run_session(session, {"x": np.zeros(2, np.float32)})[0].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("location", ["../secret.bin", "{outside}/secret.bin", "link.bin"])
def test_weights_outside_of_the_folder_are_not_read(location: str, tmp_path: Path) -> None:
    model = with_weights_in(location.format(outside=tmp_path), tmp_path)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")

    with pytest.raises(LoadFailed, match=r"names a file of weights outside of its folder"):
        open_model(model, folder)


def test_weights_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"keeps weights in lost\.bin, which is not there"):
        open_model(with_weights_in("lost.bin", tmp_path), tmp_path)


def test_an_opset_that_is_newer(tmp_path: Path) -> None:
    model = make_model([("x", FLOAT, [1])], [("y", FLOAT, [1])], [("Identity", ["x"], ["y"])], opset=99)

    with pytest.raises(LoadFailed, match=rf"opset 99 of ai\.onnx; onnxruntime {VERSION} .* up to \d+"):
        open_model(model, tmp_path)


def test_a_format_that_is_newer(tmp_path: Path) -> None:
    model = make_identity(FLOAT)
    model.ir_version = 99

    with pytest.raises(LoadFailed, match=rf"version 99 of ONNX's format; onnxruntime {VERSION} .* up to \d+"):
        open_model(model, tmp_path)


def test_an_operator_of_a_library(tmp_path: Path) -> None:
    model = make_model(
        [("x", FLOAT, [1])], [("y", FLOAT, [1])], [("Frob", ["x"], ["y"])], domain="com.example"
    )

    with pytest.raises(LoadFailed, match=r"the operator Frob of the domain com\.example"):
        open_model(model, tmp_path)


def test_an_operator_that_its_opset_does_not_have(tmp_path: Path) -> None:
    model = make_model([("x", FLOAT, [1])], [("y", FLOAT, [1])], [("Frob", ["x"], ["y"])])

    with pytest.raises(LoadFailed, match="the operator Frob, which opset 17 does not have"):
        open_model(model, tmp_path)


def test_types_without_an_implementation(tmp_path: Path) -> None:
    kind = onnx.TensorProto.INT16
    model = make_model([("x", kind, [1])], [("y", kind, [1])], [("Relu", ["x"], ["y"])])

    with pytest.raises(LoadFailed, match=r"the operator Relu in a version \(14\) or with types"):
        open_model(model, tmp_path)


def test_complex_numbers(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"has values of the type tensor\(complex64\)"):
        open_model(make_identity(onnx.TensorProto.COMPLEX64), tmp_path)


def test_a_locale_that_is_missing(tmp_path: Path) -> None:
    """As slim images have none but C: converted vectorizers of scikit-learn ask for one by default."""
    model = make_model(
        [("x", STRING, [2])],
        [("y", STRING, [2])],
        [("StringNormalizer", ["x"], ["y"])],
        case_change_action="LOWER",
        locale="xx_XX.UTF-8",
    )

    with pytest.raises(LoadFailed, match=r"locale xx_XX\.UTF-8, .*localedef -i xx_XX -f UTF-8 xx_XX\.UTF-8"):
        open_model(model, tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x08\x07:\xff\x01half"]
)
def test_files_that_are_no_models(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)

    with pytest.raises(LoadFailed, match="is cut short or is not an ONNX model"):
        open_session(tmp_path / "model.onnx", 1)


def test_messages_lose_places_in_the_source() -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Reshape node. "
        "Name:'flat' Status Message: /onnxruntime_src/onnxruntime/core/reshape_helper.h:84 "
        "onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::TensorShape&, bool) "
        "size != 0 was false. The input tensor cannot be reshaped.\n"
    )

    assert clean_message(text) == "node Reshape 'flat': The input tensor cannot be reshaped"
