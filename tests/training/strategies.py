"""Programs that train with TensorFlow's strategies, and with XGBoost's collective operations."""

from __future__ import annotations

# For TensorFlow in tests.
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

# As users of AI Platform wrote it: the tracker is at the primary's address, which TF_CONFIG names.
DISTRIBUTED_XGBOOST = """
    import hashlib, json, os, threading
    import numpy as np, xgboost
    from xgboost.tracker import RabitTracker

    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task = config["cluster"], config["task"]
    primary = [name for name in cluster if name != "worker"][0]
    rank = 0 if task["type"] == primary else task["index"] + 1
    size = 1 + len(cluster["worker"])
    host, port = cluster[primary][0].split(":")
    if rank == 0:
        tracker = RabitTracker(host_ip=host, port=int(port), n_workers=size, sortby="task")
        tracker.start()
        threading.Thread(target=tracker.wait_for, daemon=True).start()
    rows = np.random.default_rng(rank).normal(size=(200, 3))
    with xgboost.collective.CommunicatorContext(
        dmlc_tracker_uri=host, dmlc_tracker_port=int(port), dmlc_task_id="%08d" % rank, dmlc_retry=300
    ):
        data = xgboost.DMatrix(rows, label=rows[:, 0] > 0)
        booster = xgboost.train({"objective": "binary:logistic"}, data, num_boost_round=5)
        print("rank", xgboost.collective.get_rank(), "of", xgboost.collective.get_world_size(), flush=True)
        print("model", hashlib.sha256(booster.save_raw("json")).hexdigest(), flush=True)
"""
