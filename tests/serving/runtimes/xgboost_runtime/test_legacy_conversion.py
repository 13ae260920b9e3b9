from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import xgboost as xgb

from serving.errors import LoadFailed
from serving.runtimes.xgboost_runtime import legacy_conversion
from serving.runtimes.xgboost_runtime.legacy_binary import is_binary_model, parse_model, read_version
from serving.runtimes.xgboost_runtime.legacy_conversion import convert_to_ubjson

DATA = Path(__file__).parents[3] / "data" / "xgboost"
FILES = sorted(DATA.glob("*.bst"))
LOGISTIC, OTHER = DATA / "1.7.6-logistic.bst", DATA / "1.3.3-squarederror.bst"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_prefix_may_be_there_or_not(file: Path) -> None:
    """Both ways it is the same model."""
    data = file.read_bytes()
    bare = data.removeprefix(b"binf")

    assert is_binary_model(bare) and is_binary_model(b"binf" + bare)
    assert convert_to_ubjson(bare, "model.bst") == convert_to_ubjson(b"binf" + bare, "model.bst")
    assert read_version(data) == ("0.x" if file.name.startswith("0.") else file.name[:3])


@pytest.mark.parametrize("data", [b"", b"{}", b"binf", b"\x80\x04.", b"binf" + bytes(500)])
def test_other_files_are_not_binary(data: bytes) -> None:
    assert not is_binary_model(data)


def test_trees_that_treelite_reads_otherwise_are_refused() -> None:
    """What is compared are the sums of the new model and of treelite's reading of the original."""
    booster = xgb.Booster(model_file=bytearray(convert_to_ubjson(OTHER.read_bytes(), "model.bst")))
    model = parse_model(LOGISTIC.read_bytes())

    with pytest.raises(legacy_conversion.ConversionMismatch, match="finds other trees"):
        legacy_conversion.verify_trees(model, booster, LOGISTIC.read_bytes())


def test_linear_weights_in_another_order_are_refused(tmp_path: Path) -> None:
    """Also of models that treelite does not read something is compared."""
    rows = np.random.default_rng(0).normal(size=(50, 4))
    booster = xgb.train(
        {"booster": "gblinear", "nthread": 1}, xgb.DMatrix(rows, label=rows @ [1, 2, 3, 4]), 3
    )
    model = parse_model(LOGISTIC.read_bytes())

    with pytest.raises(legacy_conversion.ConversionMismatch, match="weights"):
        legacy_conversion.verify_linear(model, booster)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_are_converted_rightly_or_refused(seed: int) -> None:
    """Cut off or with a byte changed anywhere: never another error, and never the end of the process."""
    choose = random.Random(seed)
    for file in FILES:
        data = bytearray(file.read_bytes())
        for _ in range(6):
            damaged = bytearray(data)
            damaged[choose.randrange(8, len(data))] = choose.randrange(256)
            for one in (damaged, data[: choose.randrange(len(data))]):
                try:
                    convert_to_ubjson(bytes(one), "model.bst")
                except LoadFailed as error:
                    assert "old/bin/pip install 'xgboost<3.1'" in error.detail
