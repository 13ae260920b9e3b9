"""Versions that another server has prepared: their files are fetched, kept and removed."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.control.pack_maintenance import PackMaintenance
from serving.names import VersionName
from serving.resources import VersionState
from tests.conftest import Report
from tests.file_search import find_files
from tests.postgres import Postgres
from tests.serving.gateway.cluster.world import MODELS, Member, find_owner, run, until, write_model

V = VersionName("p", "m", "v")
ROWS = {"instances": [[1.0]]}


async def create_version(member: Member, folder: Path, name: str = "v", nodes: int = 0) -> None:
    scaling = {"minNodes": nodes}
    body = {
        "name": name,
        "deploymentUri": str(folder),
        "framework": "SCIKIT_LEARN",
        "autoScaling": scaling,
    }
    await member.call("POST", f"{MODELS}/m/versions", body)
    await member.until_version(VersionName("p", "m", name), VersionState.READY)


def maintenance(member: Member) -> PackMaintenance:
    found = member.sharing._maintenance
    assert found is not None
    return found


def test_the_first_node_on_another_server_takes_a_download(
    postgres: Postgres, tmp_path: Path, report: Report, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the original location nor the server that prepared it is needed; many requests wait for one."""
    shared, model = tmp_path / "shared", write_model(tmp_path / "model")
    caplog.set_level(logging.INFO, "serving.gateway.control.version_sharing")

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await owner.call("POST", MODELS, {"name": "m"})
        await create_version(owner, model)
        await other.until_version(V, VersionState.READY)
        uid = owner.state.versions[V].uid
        assert len(find_files(shared, ".pack")) == 1
        assert not (other.folder / "versions").exists()

        await asyncio.to_thread(shutil.rmtree, model)
        await asyncio.to_thread(shutil.rmtree, owner.folder / "versions")
        answers = await asyncio.gather(*(other.call("POST", f"/v1/{V}:predict", ROWS) for _ in range(20)))
        assert answers == [{"predictions": [3.0]}] * 20
        fetched = [line for line in caplog.messages if "files were fetched" in line]
        assert len(fetched) == 1
        report(f"the first node on another server: {fetched[0]}")
        assert (other.folder / "versions" / uid / "model/model.joblib").exists()

        await owner.call("DELETE", f"/v1/{V}")
        await other.until_version(V, None)
        await until(lambda: not find_files(shared, ".pack"))
        await until(lambda: not (other.folder / "versions" / uid).exists())

    run(postgres.create_database(), tmp_path, main, shared_versions_uri=str(shared), peer_port="off")


def test_files_that_are_not_used_make_room(postgres: Postgres, tmp_path: Path) -> None:
    """They are fetched again when they are needed; those of nodes, and those without a pack, stay."""
    shared, model = tmp_path / "shared", write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        owner, _ = await find_owner((a, b))
        await owner.call("POST", MODELS, {"name": "m"})
        await create_version(owner, model, "v")
        await create_version(owner, model, "w", nodes=1)
        uids = {record.name.version: record.uid for record in owner.state.versions.values()}
        folder, awake = owner.folder / "versions", owner.gateway._autoscaler.awake
        await until(lambda: set(awake) == {uids["w"]})
        await maintenance(owner).maintain()
        assert {path.name for path in folder.iterdir()} == {uids["w"]}

        assert await owner.call("POST", f"/v1/{V}:predict", ROWS) == {"predictions": [3.0]}
        assert {path.name for path in folder.iterdir()} == set(uids.values())
        await until(lambda: set(awake) == {uids["w"]})
        sharing = owner.sharing._version_sharing
        assert sharing is not None
        await sharing.evict_files(set(), lambda _: True, ())
        assert {path.name for path in folder.iterdir()} == set(uids.values())

    run(
        postgres.create_database(),
        tmp_path,
        main,
        shared_versions_uri=str(shared),
        shared_versions_bytes=0,
        idle_timeout=0.5,
        tick=0.1,
        peer_port="off",
    )


def test_a_damaged_pack_is_made_again(postgres: Postgres, tmp_path: Path) -> None:
    """By a server that has the files; until then the answer says what is wrong."""
    shared, model = tmp_path / "shared", write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        owner, other = await find_owner((a, b))
        await owner.call("POST", MODELS, {"name": "m"})
        await create_version(owner, model)
        await other.until_version(V, VersionState.READY)
        (pack,) = find_files(shared, ".pack")
        *kept, last = pack.read_bytes()
        pack.write_bytes(bytes([*kept, last ^ 1]))

        refused = await other.send("POST", f"/v1/{V}:predict", ROWS)
        assert refused.status_code >= 400
        assert "is damaged: its SHA-256 is" in refused.text
        assert await owner.call("POST", f"/v1/{V}:predict", ROWS) == {"predictions": [3.0]}

        await maintenance(owner).maintain()
        assert find_files(shared, ".pack") == [pack]
        answer: Any = None
        while answer is None or answer.status_code >= 400:
            answer = await other.send("POST", f"/v1/{V}:predict", ROWS)
        assert answer.json() == {"predictions": [3.0]}

    run(postgres.create_database(), tmp_path, main, shared_versions_uri=str(shared), peer_port="off")


def test_versions_of_before_are_packed_and_packs_of_nothing_are_removed(
    postgres: Postgres, tmp_path: Path
) -> None:
    """The setting is new; a kill has left a pack of a version that there is not."""
    shared, model = tmp_path / "shared", write_model(tmp_path / "model")
    address = postgres.create_database()

    async def create(a: Member, b: Member) -> None:
        await a.call("POST", MODELS, {"name": "m"})
        await create_version(a, model)

    run(address, tmp_path, create)

    async def main(a: Member, b: Member) -> None:
        owner, _ = await find_owner((a, b))
        assert not find_files(shared, ".pack")
        left = shared / owner.store.id / "fedcba9876543210" / f"{'0' * 64}.pack"
        foreign = shared / "another-database" / "fedcba9876543210" / f"{'0' * 64}.pack"
        for file in (left, foreign):
            file.parent.mkdir(parents=True)
            file.touch()
        for member in (a, b):
            await maintenance(member).maintain()
        deployed = owner.state.versions[V].deployed
        assert deployed is not None
        packs = {file.stem: file for file in find_files(shared, ".pack")}
        assert packs.keys() == {deployed.pack, foreign.stem}
        assert packs[foreign.stem] == foreign
        for member in (a, b):
            await member.catalog.refresh()
            assert await member.call("POST", f"/v1/{V}:predict", ROWS) == {"predictions": [3.0]}
            uid = member.state.versions[V].uid
            assert (member.folder / "versions" / uid).exists()

    run(address, tmp_path, main, shared_versions_uri=str(shared), peer_port="off")
