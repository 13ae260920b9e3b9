"""Two gateways that pass requests on to each other, over real connections."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from autoscaler.placement.ownership import choose_owners
from serving.gateway.control.placement.server_placement import ServerPlacement
from serving.gateway.proxy.peers.peer_client import PeerClient
from serving.gateway.proxy.peers.peer_protocol import OWN_VERSIONS, ProtocolVersions
from serving.names import VersionName
from serving.resources import VersionState
from tests.conftest import Report
from tests.postgres import Postgres
from tests.serving.gateway.cluster.world import MODELS, USUAL, Member, run, until, write_model

V = VersionName("p", "m", "v")
PREDICT = f"/v1/{V}:predict"
BODY = {"instances": [[1.0]]}
ANSWER = {"predictions": [3.0]}


def placement_of(member: Member) -> ServerPlacement:
    peers = member.gateway._peers
    assert peers is not None and peers._placement is not None
    return peers._placement


def client_of(member: Member) -> PeerClient:
    (client,) = placement_of(member)._clients.values()
    return client


def count_nodes(member: Member, uid: str) -> int:
    return len(member.pools[0].nodes(uid))


def is_joined(member: Member) -> bool:
    """Whether it knows the other, reaches it, and knows of both that they have started."""
    clients, seen = placement_of(member)._clients.values(), placement_of(member)._seen
    has_started = len(seen) == 2 and not any(one.record.starting for one in seen)
    return has_started and len(clients) == 1 and all(client.is_connected for client in clients)


async def create_version(model: Path, a: Member, b: Member, **version: object) -> tuple[str, Member, Member]:
    """The uid of a version that sleeps on both, its owner, and the other."""
    await until(lambda: is_joined(a) and is_joined(b))
    await a.call("POST", MODELS, {"name": "m"})
    body = {"name": "v", "deploymentUri": str(model), "framework": "SCIKIT_LEARN", **version}
    await a.call("POST", f"{MODELS}/m/versions", body)
    for member in (a, b):
        await member.until_version(V, VersionState.READY)
    uid = a.state.versions[V].uid
    (first,) = choose_owners(uid, placement_of(a)._members)
    owner, other = (a, b) if placement_of(a)._own.id == first.id else (b, a)
    return uid, owner, other


def count_answers(member: Member, uid: str) -> Counter[int]:
    """By their status."""
    return Counter(member.gateway._prediction_stats.get_or_create(uid).statuses)


async def put_to_sleep(uid: str, *members: Member) -> None:
    """Its creation has left a node on the server that did the work."""
    for member in members:
        for node in member.pools[0].nodes(uid):
            await member.pools[0].scale(member.gateway._autoscaler.versions[uid].spec, 0)
            await node.gone.wait()


def test_a_request_takes_one_hop_to_the_owner(postgres: Postgres, tmp_path: Path, report: Report) -> None:
    """With its id; errors come back as they are; only the owner has a node and counts the request."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        uid, owner, other = await create_version(model, a, b)
        await put_to_sleep(uid, a, b)
        asked = await other.send("POST", PREDICT, BODY, x_request_id="one")
        assert (asked.status_code, asked.json(), asked.headers["x-request-id"]) == (200, ANSWER, "one")
        assert (count_nodes(owner, uid), count_nodes(other, uid)) == (1, 0)
        assert (await owner.send("POST", PREDICT, BODY)).json() == ANSWER
        assert count_nodes(other, uid) == 0

        wrong = await other.send("POST", PREDICT, {"instances": "none"})
        assert wrong.status_code == 400
        assert wrong.json() == (await owner.send("POST", PREDICT, {"instances": "none"})).json()
        inference = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
        answers = [await one.send("POST", "/v2/models/m/infer", inference) for one in (other, owner)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json()["outputs"] == answers[1].json()["outputs"]

        assert placement_of(other).hops["answered"] == 3
        assert not placement_of(owner).hops
        stats = [one.gateway._prediction_stats.get_or_create(uid).statuses for one in (owner, other)]
        assert stats == [{200: 4, 400: 2}, {}]

        took: dict[Member, list[float]] = {owner: [], other: []}
        for number in range(200):
            member = (owner, other)[number % 2]
            begin = time.perf_counter()
            await member.call("POST", PREDICT, BODY)
            took[member].append(time.perf_counter() - begin)
        direct, hop = (statistics.median(took[one]) * 1e6 for one in (owner, other))
        report(f"a request at its owner: {direct:.0f} µs, with one hop: {hop - direct:.0f} µs more")
        assert hop - direct < 50_000  # docs/cluster.md has what it is on a quiet machine

    run(postgres.create_database(), tmp_path, main)


def test_a_request_is_answered_here_when_the_owner_is_gone_or_full(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        uid, owner, other = await create_version(model, a, b)
        await put_to_sleep(uid, a, b)

        monkeypatch.setattr(placement_of(owner), "is_full", lambda key: key == uid)
        assert await other.call("POST", PREDICT, BODY) == ANSWER
        assert (placement_of(other).hops["declined"], count_nodes(other, uid)) == (1, 1)
        monkeypatch.undo()
        assert await other.call("POST", PREDICT, BODY) == ANSWER
        assert placement_of(other).hops["answered"] == 1

        # It holds as many bytes of bodies as it may, in nodes and in the queue for one.
        activator, proxy = owner.gateway._activator, owner.gateway._prediction_proxy
        for place, name, value in (
            (proxy, "held_bytes", proxy.queue_bytes), (activator, "_waiting_bytes", activator._queue_bytes)
        ):  # fmt: skip
            await put_to_sleep(uid, owner)
            declined, counted = placement_of(other).hops["declined"], count_answers(owner, uid)
            monkeypatch.setattr(place, name, value)
            assert await other.call("POST", PREDICT, BODY) == ANSWER
            assert placement_of(other).hops["declined"] == declined + 1
            # And a client of its own is told so.
            assert (await owner.send("POST", PREDICT, BODY)).status_code == 429
            monkeypatch.undo()
            assert count_answers(owner, uid) - counted == {429: 1}

        # The owner itself is full: the other answers for it, in one hop.
        await put_to_sleep(uid, a, b)
        monkeypatch.setattr(placement_of(owner)._demand, "is_full", lambda key: key == uid)
        assert await owner.call("POST", PREDICT, BODY) == ANSWER
        assert (count_nodes(owner, uid), count_nodes(other, uid)) == (0, 1)
        monkeypatch.undo()

        # It ends with a request on its way: that is answered, too.
        client = client_of(other)
        await put_to_sleep(uid, a, b)
        sending = asyncio.create_task(other.call("POST", PREDICT, BODY))
        await until(lambda: client._connection is None or client._connection.callbacks)
        assert client._connection is not None
        client._connection.abort()
        assert await sending == ANSWER
        assert placement_of(other).hops["lost"] == 1

        await until(lambda: is_joined(other))
        await owner.stop()
        assert await other.call("POST", PREDICT, BODY) == ANSWER
        await until(lambda: len(placement_of(other)._members) == 1)

    run(postgres.create_database(), tmp_path, main)


def test_a_server_of_another_version_answers_by_itself(
    postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No request fails while one is upgraded, and rolled back to one that names no version."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        uid, owner, other = await create_version(model, a, b)
        await put_to_sleep(uid, a, b)
        over = asyncio.Event()

        async def ask_on() -> int:
            count = 0
            while not over.is_set():
                for member in (a, b):
                    assert await member.call("POST", PREDICT, BODY) == ANSWER
                    count += 1
                await asyncio.sleep(0.01)
            return count

        def speak(versions: ProtocolVersions) -> None:
            peers, placement = owner.gateway._peers, placement_of(owner)
            assert peers is not None and peers._server is not None
            peers._server.versions = versions
            placement._own = msgspec.structs.replace(placement._own, protocols=versions)

        asking = asyncio.create_task(ask_on())
        hops = placement_of(other).hops
        await until(lambda: hops["answered"])
        speak(ProtocolVersions(OWN_VERSIONS.newest + 1, OWN_VERSIONS.newest + 2))
        await until(lambda: not placement_of(a)._clients and not placement_of(b)._clients)
        assert await other.call("POST", PREDICT, BODY) == ANSWER
        listed = (await other.call("GET", "/servers"))["servers"]
        assert sorted(str(one["reached"]) for one in listed) == ["False", "None"]
        told = [one for one in caplog.messages if "of another Pilotlight" in one]
        assert len(told) == 2  # each of the other, once

        speak(ProtocolVersions(1, 1))
        await until(lambda: is_joined(a) and is_joined(b))
        assert (client_of(a).target.version, client_of(b).target.version) == (1, 1)
        answered = hops["answered"]
        await until(lambda: hops["answered"] > answered)
        over.set()
        assert await asking

    run(postgres.create_database(), tmp_path, main)


def test_owners_keep_the_nodes_of_a_version(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two in all, as it was asked for, not two on each server; a busy version has two owners.

    When an owner goes, the other has its part.
    """
    model, address = write_model(tmp_path / "model"), postgres.create_database()

    async def main(a: Member, b: Member) -> None:
        uid, owner, other = await create_version(model, a, b, manualScaling={"nodes": 2})
        floors = [one.gateway._autoscaler.versions[uid].floor for one in (owner, other)]
        assert floors == [2, 0]
        await until(lambda: count_nodes(owner, uid) == 2)
        listed = (await owner.call("GET", "/servers"))["servers"]
        own, peer = sorted(listed, key=lambda one: one["reached"] is not None)
        assert (own["folder"], peer["folder"]) == (str(owner.folder), str(other.folder))
        assert (own["alive"], peer["alive"], peer["reached"]) == (True, True, True)

        joining = Member(address, tmp_path / "c", USUAL)
        joining.folder.mkdir()
        await joining.start()  # it knows the others before it starts any node
        first = choose_owners(uid, placement_of(joining)._members)[0].id
        is_first = first == placement_of(joining)._own.id
        assert joining.gateway._autoscaler.versions[uid].floor == (2 if is_first else 0)
        await joining.stop()
        await until(lambda: len(placement_of(owner)._members) == 2)

        demand = placement_of(owner)._demand
        monkeypatch.setattr(demand, "count_wanted_owners", lambda *_: {uid: 2})
        for member in (owner, other):
            await until(lambda: member.gateway._autoscaler.versions[uid].floor == 1)  # noqa: B023
        await until(lambda: count_nodes(other, uid) == 1)
        hops = placement_of(other).hops["answered"]
        assert await other.call("POST", PREDICT, BODY) == ANSWER
        assert placement_of(other).hops["answered"] == hops

        placement_of(owner).begin_drain()
        await until(lambda: len(placement_of(other)._members) == 1)
        await owner.stop()
        await until(lambda: count_nodes(other, uid) == 2)

    run(address, tmp_path, main)
