"""The replicas of a job, their addresses, and what their environment tells them of it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.messages import ReplicaGroup, ReplicaRole, TrainingRequest

HOST = "127.0.0.1"
# Libraries read them when they make their threads. Not TF_NUM_INTEROP_THREADS: in those threads collective
# operations wait for each other.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)
# Threads of OpenMP wait without computing. Otherwise each of many short waits takes a processor for some
# milliseconds: on a busy machine boosted trees took ten times as long, and ten times the CPU time.
_WAIT_POLICY = {"OMP_WAIT_POLICY": "passive"}
# Those that take part in collective operations, in the order of their ranks.
_RANKED = (ReplicaRole.MASTER, ReplicaRole.WORKER)


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of a job; `devices` is its CUDA_VISIBLE_DEVICES, None where none is lent."""

    role: ReplicaRole
    index: int
    devices: str | None = None

    @property
    def task_name(self) -> str:
        """Its name in logs."""
        return f"{self.role}-replica-{self.index}"


def list_replicas(groups: Sequence[ReplicaGroup]) -> tuple[Replica, ...]:
    return tuple(
        Replica(group.role, index, group.devices[index] if group.devices else None)
        for group in groups
        for index in range(group.count)
    )


class PortReservation:
    """Ports for the replicas that have an address, each held until its replica starts.

    They are chosen below those that the kernel gives to whoever asks for any, so that none is taken between
    the two.
    """

    def __init__(self, replicas: Sequence[Replica], first: int, last: int) -> None:
        """Raises OSError when there are not enough free ports in the range."""
        self._held: dict[Replica, socket.socket] = {}
        candidates = _iterate_ports(first, last)
        try:
            for replica in replicas:
                if replica.role is not ReplicaRole.EVALUATOR:
                    self._held[replica] = _hold_free_port(candidates)
        except BaseException:
            self.close()
            raise
        self.ports = {replica: held.getsockname()[1] for replica, held in self._held.items()}

    def release(self, replica: Replica) -> None:
        """Let the replica have its port."""
        if (held := self._held.pop(replica, None)) is not None:
            held.close()

    def close(self) -> None:
        for replica in list(self._held):
            self.release(replica)


def _iterate_ports(first: int, last: int) -> Iterator[int]:
    """All ports of a range, from a random one on: whoever reserves at the same time begins elsewhere."""
    [start] = random.sample(range(first, last + 1), 1)
    yield from range(start, last + 1)
    yield from range(first, start)


def _hold_free_port(candidates: Iterator[int]) -> socket.socket:
    for port in candidates:
        held = socket.socket()
        try:
            held.bind((HOST, port))
        except OSError:
            held.close()
            continue
        return held
    raise OSError("No port is free in the range of ports for training.")


def build_environment(
    request: TrainingRequest,
    replica: Replica,
    ports: Mapping[Replica, int],
    *,
    threads: int,
    restarts: int,
) -> dict[str, str]:
    """The environment of a replica; `restarts` is how often it has been started again."""
    found = _WAIT_POLICY | {name: str(threads) for name in THREAD_VARIABLES}
    found |= request.environment | request.variables
    found |= {
        "CLOUD_ML_JOB_ID": request.job,
        "TF_CONFIG": json.dumps(build_tf_config(request, replica, ports)),
        "CLUSTER_SPEC": json.dumps(_build_cluster_spec(request, replica, ports)),
        "PILOTLIGHT_ATTEMPT": str(request.attempt),
        "PILOTLIGHT_RESTART": str(restarts),
        "PYTHONUNBUFFERED": "1",
    }
    if request.trial:
        # Programs take their presence for "this is a trial".
        found |= {
            "CLOUD_ML_TRIAL_ID": request.trial,
            "CLOUD_ML_HP_METRIC_TAG": request.metric_tag,
            # The chief's counts. Each replica has one, as each writes its file anew.
            "CLOUD_ML_HP_METRIC_FILE": request.metric_file + _metric_suffix(replica),
        }
    if replica.devices is not None:
        found["CUDA_VISIBLE_DEVICES"] = replica.devices
    return found | _rank_variables(replica, ports)


def _metric_suffix(replica: Replica) -> str:
    return "" if replica.role is ReplicaRole.MASTER else f".{replica.task_name}"


def build_tf_config(
    request: TrainingRequest, replica: Replica, ports: Mapping[Replica, int]
) -> dict[str, Any]:
    """What TensorFlow and others read from TF_CONFIG."""
    return {
        "cluster": _list_addresses(ports, request.primary_name),
        "task": _describe_task(request, replica, request.primary_name),
        "job": request.training_input,
        "environment": "cloud",
    }


def _build_cluster_spec(
    request: TrainingRequest, replica: Replica, ports: Mapping[Replica, int]
) -> dict[str, Any]:
    """That of a job in containers: as TF_CONFIG, but its primary is always the master."""
    return {
        "cluster": _list_addresses(ports, ReplicaRole.MASTER),
        "task": _describe_task(request, replica, ReplicaRole.MASTER),
        "job": request.training_input,
        "environment": "cloud",
    }


def _list_addresses(ports: Mapping[Replica, int], primary: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for replica, port in ports.items():
        found.setdefault(_task_type(replica, primary), []).append(f"{HOST}:{port}")
    return found


def _describe_task(request: TrainingRequest, replica: Replica, primary: str) -> dict[str, Any]:
    task: dict[str, Any] = {"type": _task_type(replica, primary), "index": replica.index}
    return task | ({"trial": request.trial} if request.trial else {})


def _task_type(replica: Replica, primary: str) -> str:
    return primary if replica.role is ReplicaRole.MASTER else str(replica.role)


def _rank_variables(replica: Replica, ports: Mapping[Replica, int]) -> dict[str, str]:
    """What PyTorch and XGBoost expect; {} for parameter servers and evaluators."""
    ranked = [one for role in _RANKED for one in ports if one.role is role]
    if replica not in ranked:
        return {}
    return {
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(ports[ranked[0]]),
        "RANK": str(ranked.index(replica)),
        "WORLD_SIZE": str(len(ranked)),
        "LOCAL_RANK": str(ranked.index(replica)),
    }
