"""What replicas are told of their cluster."""

from __future__ import annotations

import json
import socket

import pytest

from training.cluster import PortReservation, Replica, build_environment, list_replicas
from training.messages import ReplicaGroup, ReplicaRole, TrainingRequest

GROUPS = (
    ReplicaGroup(ReplicaRole.MASTER),
    ReplicaGroup(ReplicaRole.WORKER, 2, devices=("0,1", "2,3")),
    ReplicaGroup(ReplicaRole.PARAMETER_SERVER),
    ReplicaGroup(ReplicaRole.EVALUATOR),
)
MASTER, FIRST_WORKER, SECOND_WORKER, PARAMETER_SERVER, EVALUATOR = REPLICAS = list_replicas(GROUPS)
PORTS = {MASTER: 1, FIRST_WORKER: 2, SECOND_WORKER: 3, PARAMETER_SERVER: 4}
REQUEST = TrainingRequest(
    job="j",
    uid="1",
    module="m",
    groups=GROUPS,
    scratch_dir="",
    log_dir="",
    cache_dir="",
    cache_bytes=0,
    trial="7",
)


def environment_of(replica: Replica) -> dict[str, str]:
    return build_environment(REQUEST, replica, PORTS, threads=3, restarts=4)


def test_tf_config_has_the_same_cluster_for_all() -> None:
    configs = {one: json.loads(environment_of(one)["TF_CONFIG"]) for one in REPLICAS}

    cluster = {
        "chief": ["127.0.0.1:1"],
        "worker": ["127.0.0.1:2", "127.0.0.1:3"],
        "ps": ["127.0.0.1:4"],
    }
    assert all(config["cluster"] == cluster for config in configs.values())
    assert configs[MASTER]["task"] == {"type": "chief", "index": 0, "trial": "7"}
    assert configs[SECOND_WORKER]["task"] == {"type": "worker", "index": 1, "trial": "7"}
    assert configs[EVALUATOR]["task"] == {"type": "evaluator", "index": 0, "trial": "7"}


def test_cluster_spec_calls_the_primary_master() -> None:
    found = json.loads(environment_of(MASTER)["CLUSTER_SPEC"])

    assert found["task"]["type"] == "master"
    assert found["cluster"]["master"] == ["127.0.0.1:1"]


def test_ranks_leave_out_those_that_compute_nothing_together() -> None:
    assert environment_of(MASTER)["RANK"] == "0"
    assert environment_of(SECOND_WORKER)["RANK"] == "2"
    assert environment_of(SECOND_WORKER)["WORLD_SIZE"] == "3"
    assert environment_of(SECOND_WORKER)["MASTER_PORT"] == "1"
    assert "RANK" not in environment_of(PARAMETER_SERVER)
    assert "RANK" not in environment_of(EVALUATOR)


def test_devices_and_threads_are_those_of_the_replica() -> None:
    assert environment_of(SECOND_WORKER)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in environment_of(MASTER)
    assert environment_of(MASTER)["OMP_NUM_THREADS"] == "3"
    assert environment_of(MASTER)["OMP_WAIT_POLICY"] == "passive"
    assert environment_of(MASTER)["PILOTLIGHT_RESTART"] == "4"


def test_a_port_is_held_until_its_replica_starts() -> None:
    reservation = PortReservation(REPLICAS, 20000, 20999)
    try:
        port = reservation.ports[FIRST_WORKER]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        reservation.release(FIRST_WORKER)
        with socket.socket() as own:
            own.bind(("127.0.0.1", port))
    finally:
        reservation.close()
    assert EVALUATOR not in reservation.ports
    assert len(set(reservation.ports.values())) == 4


def test_too_few_ports_are_an_error() -> None:
    with pytest.raises(OSError, match="range of ports"):
        PortReservation(REPLICAS, 20000, 20001)
