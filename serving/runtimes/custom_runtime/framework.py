"""What is said of custom prediction routines; see `serving.frameworks`."""

from __future__ import annotations

from serving.frameworks import Framework

FRAMEWORK = Framework(
    name="CUSTOM",
    title="custom prediction routine",
    platform="custom",
    load="serving.runtimes.custom_runtime.runtime:load_model",
    runs_user_code=True,
    predictor_loaders={"": "CUSTOM"},
    preload=("serving.runtimes.custom_runtime.runtime",),
)
