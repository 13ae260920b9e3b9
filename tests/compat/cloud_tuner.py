"""A whole search of tensorflow-cloud's CloudTuner: cloud_tuner.py DOCUMENT STUDY TRIALS FOLDER.

It reads the discovery document of a file, which says where the server is. Prints the two best trials.
"""

import json
import sys

import keras_tuner
import numpy as np
import tensorflow as tf
from tensorflow_cloud.tuner import constants
from tensorflow_cloud.tuner.tuner import CloudTuner

FEATURES = 4


def build_model(chosen):
    model = tf.keras.Sequential([tf.keras.Input((FEATURES,))])
    for _ in range(chosen.get("layers")):
        model.add(tf.keras.layers.Dense(chosen.get("units"), activation=chosen.get("activation")))
    model.add(tf.keras.layers.Dense(2, activation="softmax"))
    optimizer = tf.keras.optimizers.Adam(chosen.get("rate"))
    model.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"])
    return model


def make_space():
    space = keras_tuner.HyperParameters()
    space.Float("rate", 1e-4, 1e-1, sampling="log")
    space.Int("layers", 1, 3)
    space.Choice("units", [4, 8, 16])
    space.Choice("activation", ["relu", "tanh"])
    space.Boolean("shuffle")
    space.Fixed("batch", 32)
    return space


def main(document, study, trials, folder):
    constants.OPTIMIZER_API_DOCUMENT_FILE = document
    rows = np.random.default_rng(0).normal(size=(256, FEATURES)).astype("float32")
    labels = (rows[:, 0] * rows[:, 1] > 0).astype("int32")
    tuner = CloudTuner(
        build_model,
        project_id="tests",
        region="us-central1",
        objective="val_accuracy",
        hyperparameters=make_space(),
        max_trials=int(trials),
        study_id=study,
        directory=folder,
        project_name=study,
    )
    validation = rows[192:], labels[192:]
    tuner.search(rows[:192], labels[:192], validation_data=validation, epochs=3, verbose=0)
    best = tuner.oracle.get_best_trials(2)
    print(json.dumps([[trial.trial_id, trial.score, trial.hyperparameters.values] for trial in best]))


main(*sys.argv[1:])
