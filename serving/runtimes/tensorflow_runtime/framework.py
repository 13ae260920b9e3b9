"""What is said of TensorFlow; see `serving.frameworks`."""

from __future__ import annotations

from serving.frameworks import Framework, ModelFile

_KERAS_ADVICE = "{name} is a Keras file: write a SavedModel with model.export(folder) and deploy that."

FRAMEWORK = Framework(
    name="TENSORFLOW",
    title="TensorFlow",
    platform="tensorflow_savedmodel",
    load="serving.runtimes.tensorflow_runtime.runtime:load_model",
    library="tensorflow",
    packages=frozenset({"tensorflow", "keras"}),
    distributions=("tensorflow",),
    extra="tensorflow",
    environment={"TF_CPP_MIN_LOG_LEVEL": "3"},
    model_files=(ModelFile(name="saved_model.pb"), ModelFile(name="saved_model.pbtxt")),
    advice=dict.fromkeys((".h5", ".hdf5", ".keras"), _KERAS_ADVICE),
    takes_named_tensors=True,
    served_by_tensorflow_serving=True,
    keeps_instances=True,
    # It shares a process with XGBoost badly.
    pilot="tensorflow",
    preload=(
        "serving.runtimes.tensorflow_runtime.runtime",
        "serving.runtimes.tensorflow_runtime.kernel_warmup",
    ),
    threadless_warmup="serving.runtimes.tensorflow_runtime.kernel_warmup:compile_kernels",
    pilot_bytes=620 << 20,
    # Keras needs it.
    user_imports=r"tensorflow\w*|(?:tf_)?keras",
)
