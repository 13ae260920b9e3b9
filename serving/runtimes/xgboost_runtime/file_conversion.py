"""Brings the files of a model folder up to date."""

from __future__ import annotations

from pathlib import Path

from serving.runtimes.xgboost_runtime.legacy_binary import is_binary_model, read_version

# Those that early versions wrote with `save_model`, whatever they are called.
_FILES = ("model.bst", "model.joblib", "model.pkl")


def convert_files(folder: Path) -> tuple[str, ...]:
    """Convert models in XGBoost's old binary format, and say which. Raises LoadFailed."""
    texts = []
    for file in (folder / name for name in _FILES if (folder / name).is_file()):
        data = file.read_bytes()
        if not is_binary_model(data):
            continue
        # It imports XGBoost.
        from serving.runtimes.xgboost_runtime.legacy_conversion import convert_to_ubjson  # noqa: PLC0415

        converted = file.with_name(f".{file.name}.converted")
        converted.write_bytes(convert_to_ubjson(data, file.name))
        converted.replace(file)
        texts.append(
            f"{file.name} is in the old binary format of XGBoost {read_version(data)}; it was converted."
        )
    return tuple(texts)
