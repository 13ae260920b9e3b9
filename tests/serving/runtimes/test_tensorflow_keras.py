"""Models of Keras 3 that were saved by `tf.saved_model.save`: the signature calls' answers, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from serving.runtimes import LoadSpec

Arrays = dict[str, NDArray[Any]]


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def build_dense(keras: Any) -> tuple[Any, NDArray[Any]]:
    layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.BatchNormalization()]
    return keras.Sequential([*layers, keras.layers.Dropout(0.5), keras.layers.Dense(2)]), normal(3, 4)


def build_trained(keras: Any) -> tuple[Any, NDArray[Any]]:
    """With an optimizer, whose variables are saved beside the model's own."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    model.fit(normal(8, 4), normal(8, 2), verbose=0)
    return model, normal(3, 4)


def build_convolution(keras: Any) -> tuple[Any, NDArray[Any]]:
    layers = keras.layers
    image = keras.Input((12, 12, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3)(layers.Rescaling(1 / 255)(image))))
    return keras.Model(image, layers.Dense(4)(layers.GlobalAveragePooling2D()(x))), normal(3, 12, 12, 3)


def build_recurrent(keras: Any) -> tuple[Any, NDArray[Any]]:
    layers = keras.layers
    steps = keras.Input((6, 5))
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(steps)
    return keras.Model(steps, layers.Dense(2)(layers.GRU(3)(x))), normal(3, 6, 5)


def build_attention(keras: Any) -> tuple[Any, NDArray[Any]]:
    layers = keras.layers
    tokens = keras.Input((5, 8))
    x = layers.LayerNormalization()(tokens + layers.MultiHeadAttention(2, 4)(tokens, tokens))
    return keras.Model(tokens, {"tokens": x, "label": layers.Dense(3)(layers.Flatten()(x))}), normal(3, 5, 8)


def build_text(keras: Any) -> tuple[Any, NDArray[Any]]:
    """A table of words beside the variables."""
    words = keras.layers.TextVectorization(output_sequence_length=4, vocabulary=["red", "green", "blue"])
    layers = [words, keras.layers.Embedding(8, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
    texts = np.array([b"red blue", b"green", b"what is this"], object)
    return keras.Sequential([keras.Input((), dtype="string"), *layers]), texts


def build_subclass(keras: Any) -> tuple[Any, NDArray[Any]]:
    """Layers that share their names, in a model that was only called."""

    class Nested(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = keras.layers.Dense(3, name="same")
            self.rest = keras.Sequential([keras.layers.Dense(3, name="same"), keras.layers.Dense(2)])

        def call(self, x: Any) -> Any:
            return self.rest(self.first(x))

    model = Nested()
    model(normal(3, 4))
    return model, normal(3, 4)


@pytest.mark.parametrize(
    "build",
    [
        build_dense,
        build_trained,
        build_convolution,
        build_recurrent,
        build_attention,
        build_text,
        build_subclass,
    ],
)
def test_a_saved_keras_model_answers_like_its_signature_call(
    tf: Any, tmp_path: Path, build: Callable[[Any], tuple[Any, NDArray[Any]]]
) -> None:
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    tf.keras.utils.set_random_seed(3)
    model, instances = build(tf.keras)
    for number, weight in enumerate(model.weights):
        if "float" in weight.dtype:
            weight.assign(np.abs(normal(*weight.shape)) + number)
    tf.saved_model.save(model, str(tmp_path))
    runtime = load_model(LoadSpec(tmp_path))
    (alias,) = (column.name for column in runtime.input_format({}).inputs)

    answer = runtime.predict({alias: instances})

    signature = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    wanted = signature(**{alias: tf.constant(instances)})
    assert isinstance(answer, dict)
    assert answer.keys() == wanted.keys()
    for name, column in answer.items():
        np.testing.assert_array_equal(column, wanted[name].numpy(), strict=True)


def test_what_the_checkpoint_does_not_have_is_a_failure_to_load(tf: Any, tmp_path: Path) -> None:
    from serving.errors import LoadFailed
    from serving.runtimes.tensorflow_runtime.runtime import load_model

    model, _ = build_dense(tf.keras)
    tf.saved_model.save(model, str(tmp_path))
    for part in (tmp_path / "variables").iterdir():
        part.unlink()

    with pytest.raises(LoadFailed, match="copied whole"):
        load_model(LoadSpec(tmp_path))
