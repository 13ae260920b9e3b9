"""Three servers whose database is away, or that cannot reach it, or each other: what goes on meanwhile.

The short form is in `tests/serving/gateway/cluster/test_servers.py`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from loadtests.bench.targets.servers import find_free_port
from tests.conftest import Report
from tests.postgres import Postgres
from tests.server import Server, until
from tests.soak.cluster.relay import Relay, relay_database
from tests.soak.cluster.world import (
    ASKED,
    PROJECT,
    REGISTERS,
    ServerPlace,
    Size,
    World,
    list_violations,
    open_world,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SERVERS = 3
SIZE = Size(seconds=60, pause=5, down=0, clients=3, jobs=3, versions=10, tunings=1)
SLEEPING = 6
# Seconds within which a change is refused that cannot be made: a silent database is known after eight.
_REFUSED_WITHIN = 30.0
_IDLE_SECONDS = "1"
# The group of the first server, by which its packets are known.
_GROUP = "54321"
_IN_GROUP = ("setpriv", f"--regid={_GROUP}", "--clear-groups")
_ROW = [[5.1, 3.5, 1.4, 0.2]]


@dataclass(frozen=True)
class Network:
    """The database, relays before it and ports for other servers, both in the order of servers."""

    postgres: Postgres
    relays: Sequence[Relay]
    ports: Sequence[int]
    places: Sequence[ServerPlace]


@contextmanager
def open_network(postgres: Postgres, folder: Path) -> Iterator[Network]:
    address, ports = postgres.create_database(), [find_free_port() for _ in range(SERVERS)]
    with ExitStack() as stack:
        relays: list[Relay] = []
        places: list[ServerPlace] = []
        for port in ports:
            relay, through = relay_database(address, folder / f"database{port}")
            relays.append(stack.enter_context(closing(relay)))
            flags = ("--peer-port", str(port), "--idle-timeout", _IDLE_SECONDS)
            is_marked = not places and can_drop_packets()
            places.append(ServerPlace(through, flags, _IN_GROUP if is_marked else ()))
        yield Network(postgres, relays, ports, places)


@contextmanager
def stop_database(network: Network) -> Iterator[None]:
    network.postgres.stop()
    try:
        yield
    finally:
        network.postgres.start()


def freeze_database(network: Network) -> AbstractContextManager[None]:
    return network.postgres.frozen()


def cut_first_from_database(network: Network) -> AbstractContextManager[None]:
    return network.relays[0].cut()


@contextmanager
def cut_peers(network: Network) -> Iterator[None]:
    """Nothing that one sends to another arrives, and neither is told."""
    with drop_packets([rule for port in network.ports for rule in match_port(port)]):
        yield


@contextmanager
def cut_first_from_peers(network: Network) -> Iterator[None]:
    """Nothing passes between the first one and the others, which reach each other; all have the database."""
    own, *others = network.ports
    # By their ports alone its connections to others cannot be told from theirs to each other.
    sent = [
        ("OUTPUT", "--out-interface", "lo", "--protocol", "tcp", "--dport", str(port),
         "--match", "owner", "--gid-owner", _GROUP)
        for port in others
    ]  # fmt: skip
    with drop_packets([*match_port(own), *sent]):
        yield


def match_port(port: int) -> Sequence[Sequence[str]]:
    """What is sent to a port, and from it."""
    return [
        ("INPUT", "--in-interface", "lo", "--protocol", "tcp", side, str(port))
        for side in ("--dport", "--sport")
    ]


@contextmanager
def drop_packets(rules: Sequence[Sequence[str]]) -> Iterator[None]:
    if not can_drop_packets():
        pytest.skip("needs iptables and setpriv, and to be root")
    with ExitStack() as stack:
        for rule in rules:
            dropping = (*rule, "--jump", "DROP")
            subprocess.run(["iptables", "--wait", "--insert", *dropping], check=True)
            stack.callback(subprocess.run, ["iptables", "--wait", "--delete", *dropping], check=True)
        yield


def can_drop_packets() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("iptables", "setpriv")))


Cut = Callable[[Network], AbstractContextManager[None]]
# How many of the servers, from the first on, can make no change meanwhile.
CUTS: Sequence[tuple[Cut, int]] = (
    (stop_database, SERVERS), (freeze_database, SERVERS), (cut_first_from_database, 1), (cut_peers, 0),
    (cut_first_from_peers, 0),
)  # fmt: skip


@pytest.mark.parametrize(("cut", "mute"), [pytest.param(cut, mute, id=cut.__name__) for cut, mute in CUTS])
def test_predictions_go_on_and_no_change_is_lost(
    postgres: Postgres, tmp_path: Path, report: Report, cut: Cut, mute: int
) -> None:
    """Of versions that sleep, too. Changes that cannot be made are refused; all ends well afterwards."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with (
        open_network(postgres, tmp_path) as network,
        open_world(tmp_path, network.places, seed, SIZE) as world,
    ):
        sleeping = create_sleeping_versions(world)
        with world.run_clients():
            time.sleep(SIZE.pause)
            with cut(network):
                over = time.monotonic() + SIZE.seconds
                woken = [wake_version(world, name) for name in sleeping]
                refused = [refuse_change(server) for server in world.servers[:mute]]
                accepted = [change(server) for server in world.servers[mute:]]
                time.sleep(max(0.0, over - time.monotonic()))
            time.sleep(SIZE.pause)
        violations = list_violations(world)

    report(
        f"seed {seed}, {cut.__name__} for {SIZE.seconds:g} s: answers {dict(sorted(world.answers.items()))}, "
        f"{len(world.failed)} predictions failed; sleeping versions answered after at most "
        f"{max(woken):.2f} s; changes refused after at most {max(refused, default=0.0):.1f} s, "
        f"made after at most {max(accepted, default=0.0):.1f} s; {len(world.operations)} operations, "
        f"{len(world.jobs)} jobs, {len(world.tunings)} tuning jobs"
    )
    assert not violations
    assert not world.failed


def create_sleeping_versions(world: World) -> Sequence[str]:
    parent = ASKED.rpartition("/")[0]
    names = [f"{parent}/sleeping{number}" for number in range(SLEEPING)]
    for name in names:
        world.servers[0].create_version(name, deploymentUri=str(world.folder / "forest"))
    for server in world.servers:
        until(partial(knows_sleeping, server, names), "all servers know the versions, which sleep")
    return names


def knows_sleeping(server: Server, names: Sequence[str]) -> bool:
    return all(server.call("GET", name).status == 200 and not server.nodes(name) for name in names)


def wake_version(world: World, name: str) -> float:
    """Seconds until a random server has answered for it."""
    server, begin = random.choice(world.servers), time.monotonic()
    answer = server.predict(name, _ROW)
    took = time.monotonic() - begin
    assert answer.status == 200, answer.json
    assert answer.json == server.predict(ASKED, _ROW).json
    return took


def refuse_change(server: Server) -> float:
    """Seconds until a change was refused."""
    begin = time.monotonic()
    refused = server.call("POST", f"{PROJECT}/models", json={"name": "refused"})
    assert refused.status == 503, refused.json
    assert int(refused.headers["retry-after"]) > 0
    took = time.monotonic() - begin
    assert took < _REFUSED_WITHIN
    return took


def change(server: Server) -> float:
    """Seconds until a change was made."""
    begin = time.monotonic()
    made = server.call("PATCH", f"{REGISTERS[0]}?updateMask=labels", json={"labels": {"a": "b"}})
    assert made.status == 200, made.json
    return time.monotonic() - begin
