"""What is said of XGBoost; see `serving.frameworks`."""

from __future__ import annotations

from pathlib import Path

from serving.frameworks import Framework, ModelFile


def is_xgboost_pickle(file: Path) -> bool:
    """Whether the object in a pickle is XGBoost's own; other estimators may hold one of it."""
    from serving.runtimes.framework_detection import read_first_class  # noqa: PLC0415  where there is a pickle

    return read_first_class(file).partition(".")[0] == "xgboost"


PICKLE_FILES = ("model.joblib", "model.pkl")

FRAMEWORK = Framework(
    name="XGBOOST",
    title="XGBoost",
    platform="xgboost",
    load="serving.runtimes.xgboost_runtime.runtime:load_model",
    library="xgboost",
    packages=frozenset({"xgboost"}),
    distributions=("xgboost",),
    accelerators=("treelite",),
    model_files=(
        *(ModelFile(name=name, recognize=is_xgboost_pickle) for name in PICKLE_FILES),
        ModelFile(name="model.bst", suffixes=(".bst", ".model")),
        ModelFile(name="model.json", is_extension=True),
        ModelFile(name="model.ubj", is_extension=True),
    ),
    convert_files="serving.runtimes.xgboost_runtime.legacy_binary:convert_files",
    has_methods=True,
    takes_missing_numbers=True,
    predictor_loaders={
        **dict.fromkeys(PICKLE_FILES, "XGBOOST_PICKLE"),
        "model.bst": "XGBOOST",
        "model.json": "XGBOOST",
        "model.ubj": "XGBOOST",
    },
    predictor_preload=("xgboost",),
    batch_rows=1024,
    keeps_instances=True,
    verified_first=True,
    # With treelite: an accelerated booster may be computed by it.
    preload=(
        "serving.runtimes.xgboost_runtime.runtime",
        "serving.acceleration.xgboost.treelite_gtil",
    ),
    tiny_model="serving.runtimes.xgboost_runtime.runtime:write_tiny_model",
)
