"""TensorFlow's strategies for clusters, as real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.jobs import JobRun
from training.messages import ReplicaGroup, ReplicaRole

TWO = (ReplicaGroup(ReplicaRole.MASTER), ReplicaGroup(ReplicaRole.WORKER))
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

CUSTOM_LOOP = """
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    @tf.function
    def step(x, y):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((weight * x - y) ** 2)
            gradient = tape.gradient(loss, weight)
            context = tf.distribute.get_replica_context()
            weight.assign_sub(0.1 * context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient))
            return loss
        return strategy.run(replica_step, args=(x, y))

    x = tf.constant([1.0, 2.0])
    for _ in range(30):
        step(x, 3.0 * x)
    print("replicas", strategy.num_replicas_in_sync, "weight", round(float(weight.numpy()), 2))
"""

KERAS = """
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    x = np.linspace(0, 1, 64, dtype=np.float32)[:, None]
    data = tf.data.Dataset.from_tensor_slices((x, 2 * x)).repeat().batch(16)
    history = model.fit(data, epochs=2, steps_per_epoch=4, verbose=0)
    print("losses", len(history.history["loss"]), type(model).__module__.split(".")[0])
"""

PARAMETER_SERVER = """
    import json, os
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def step():
        strategy.run(lambda: total.assign_add(1.0))

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    print("total", float(total.numpy()))
"""


@pytest.mark.timeout(400)
def test_a_custom_loop_across_workers(tmp_path: Path) -> None:
    with JobRun(tmp_path, CUSTOM_LOOP, groups=TWO, variables=QUIET) as job:
        last = job.finish()

    assert last.done is not None, last
    assert job.lines()[-1] == "replicas 2 weight 3.0"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_keras_across_workers(tmp_path: Path) -> None:
    """Keras 3 cannot do that; the one before it can."""
    with JobRun(tmp_path, KERAS, groups=TWO, variables={**QUIET, "TF_USE_LEGACY_KERAS": "1"}) as job:
        last = job.finish()

    assert last.done is not None, last
    assert job.lines()[-1] == "losses 2 tf_keras"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_parameter_servers(tmp_path: Path) -> None:
    groups = (*TWO, ReplicaGroup(ReplicaRole.PARAMETER_SERVER))
    with JobRun(tmp_path, PARAMETER_SERVER, groups=groups, variables=QUIET, grace_seconds=1.0) as job:
        last = job.finish()

    assert last.done is not None, last
    assert job.lines()[-1] == "total 10.0"
