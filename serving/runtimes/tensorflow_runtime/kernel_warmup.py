"""Has TensorFlow compile what multiplies matrices, without a Session.

oneDNN compiles all such kernels for the processor at the first product, which takes longer than all the rest
of a small model's first call. A Session would do it too, but leaves threads: a process that has any cannot
fork replicas of training jobs, and the first Session of a process decides how many it has. Grappler, the
optimiser of graphs, computes what is constant with threads of its own, which end with the call.
"""

from __future__ import annotations

import _thread
import os
import threading

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, meta_graph_pb2
from tensorflow.python.grappler import cluster, tf_optimizer

_THREAD_SECONDS = 1.0
_FLOAT = tf.float32.as_datatype_enum
_PROCESSOR = device_properties_pb2.NamedDevice(
    name="/job:localhost/replica:0/task:0/device:CPU:0",
    properties=device_properties_pb2.DeviceProperties(type="CPU", num_cores=1, frequency=1000),
)


def compile_kernels() -> None:
    """Multiply two constant matrices. Leaves no thread.

    Raises RuntimeError where the machine is short of threads.
    """
    _require_threads(len(os.sched_getaffinity(0)))
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1  # of however few nodes
    tf_optimizer.OptimizeGraph(
        config, _build_product(), verbose=False, cluster=cluster.Cluster(devices=[_PROCESSOR])
    )


def _require_threads(count: int) -> None:
    """Start so many threads, and end them: where Grappler cannot start its own, it aborts the process."""
    release, ended = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        release.wait()
        ended.release()

    started = 0
    try:
        for _ in range(count):
            # `Thread.start` would wait forever for a thread that has no memory to begin with.
            _thread.start_new_thread(wait, ())
            started += 1
    finally:
        release.set()
        for _ in range(started):
            if not ended.acquire(timeout=_THREAD_SECONDS):
                raise RuntimeError("A thread was started and has not run.")


def _build_product() -> meta_graph_pb2.MetaGraphDef:
    """Made by hand: a `tf.Graph` would start a thread."""
    meta_graph = meta_graph_pb2.MetaGraphDef()
    graph = meta_graph.graph_def
    graph.versions.producer = tf.version.GRAPH_DEF_VERSION
    matrix = graph.node.add(name="matrix", op="Const")
    matrix.attr["dtype"].type = _FLOAT
    # Of two rows: one alone is multiplied otherwise.
    matrix.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.ones((2, 2), np.float32)))
    product = graph.node.add(name="product", op="MatMul", input=[matrix.name, matrix.name])
    product.attr["T"].type = _FLOAT
    meta_graph.collection_def["train_op"].node_list.value.append(product.name)
    return meta_graph
