"""The facts about ONNX models."""

from __future__ import annotations

from serving.frameworks import Framework, ModelFile

FRAMEWORK = Framework(
    name="ONNX",
    title="ONNX",
    platform="onnxruntime_onnx",
    load="serving.runtimes.onnx_runtime.runtime:load_model",
    library="onnxruntime",
    packages=frozenset({"onnxruntime"}),
    distributions=("onnxruntime",),
    extra="onnx",
    # Else it sends what it is used for to its maker, from a thread that would forbid forks.
    environment={"ORT_DISABLE_TELEMETRY": "1"},
    model_files=(ModelFile(name="model.onnx", is_extension=True, suffixes=(".onnx",)),),
    takes_named_tensors=True,
    batch_rows=1024,
    keeps_instances=True,
    pilot="onnx",
    preload=(
        "numpy.random",  # numpy imports it when made-up rows first ask for it
        "serving.runtimes.onnx_runtime.runtime",
    ),
    tiny_model="serving.runtimes.onnx_runtime.runtime:write_tiny_model",
)
