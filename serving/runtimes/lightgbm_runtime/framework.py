"""The facts about LightGBM models."""

from __future__ import annotations

from pathlib import Path

from serving.frameworks import Framework, ModelFile

FIRST_LINE = b"tree\n"
"""What the text that LightGBM writes begins with."""


def is_lightgbm_text(file: Path) -> bool:
    """Whether LightGBM has written it: other texts may have this name too."""
    with file.open("rb") as stream:
        return stream.read(len(FIRST_LINE) + 1).replace(b"\r", b"").startswith(FIRST_LINE)


FRAMEWORK = Framework(
    name="LIGHTGBM",
    title="LightGBM",
    platform="lightgbm",
    load="serving.runtimes.lightgbm_runtime.runtime:load_model",
    library="lightgbm",
    packages=frozenset({"lightgbm"}),
    distributions=("lightgbm", "pandas"),
    extra="lightgbm",
    model_files=(
        ModelFile(
            name="model.txt",
            is_extension=True,
            recognize=is_lightgbm_text,
            suffixes=(".lgb", ".lgbm", ".lightgbm"),
        ),
        # As KServe and MLServer name it.
        ModelFile(name="model.bst", recognize=is_lightgbm_text, is_shared_name=True),
    ),
    takes_missing_numbers=True,
    batch_rows=1024,
    keeps_instances=True,
    # Of its own: the library needs OpenMP of the system, which small images do not have.
    pilot="lightgbm",
    preload=("serving.runtimes.lightgbm_runtime.runtime",),
    tiny_model="serving.runtimes.lightgbm_runtime.runtime:write_tiny_model",
)
