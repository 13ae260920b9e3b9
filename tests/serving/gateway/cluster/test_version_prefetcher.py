"""Files of versions are fetched before the first request, by the servers that the versions are placed on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from autoscaler.placement.ownership import choose_owners
from serving.gateway.control.version_prefetcher import VersionPrefetcher
from serving.gateway.control.version_sharing import _TRANSFERS
from serving.names import VersionName
from serving.resources import VersionState
from tests.file_search import find_files
from tests.postgres import Postgres
from tests.serving.gateway.cluster.test_placement import is_joined, placement_of
from tests.serving.gateway.cluster.test_shared_versions import create_version
from tests.serving.gateway.cluster.world import MODELS, Member, find_owner, run, until, write_model

_MOST_VERSIONS = 32
# A server fetches ahead as long as that much of its disk stays free: little, so that a test runs on any disk.
_PREFETCH_BYTES = 1 << 20


def prefetcher_of(member: Member) -> VersionPrefetcher:
    found = member.sharing._prefetcher
    assert found is not None
    return found


def list_fetched(member: Member) -> set[str]:
    folder = member.folder / "versions"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def list_owned(member: Member) -> set[str]:
    """The uids of the versions that are placed on it."""
    placement = placement_of(member)
    uids = (record.uid for record in member.state.versions.values())
    return {uid for uid in uids if choose_owners(uid, placement._members)[0].id == placement._own.id}


async def create_versions(members: Sequence[Member], model: Path, *, owned: int) -> tuple[Member, Member]:
    """The server that has prepared some versions, and another that owns so many of them, but not all."""
    await until(lambda: all(map(is_joined, members)))
    maker, other = await find_owner(members)
    await maker.call("POST", MODELS, {"name": "m"})
    for number in range(_MOST_VERSIONS):
        await create_version(maker, model, f"v{number}")
        await other.until_version(VersionName("p", "m", f"v{number}"), VersionState.READY)
        if owned <= len(list_owned(other)) <= number:
            return maker, other
    raise AssertionError("nearly all versions are placed on one server")


def run_with_prefetch(
    postgres: Postgres,
    folder: Path,
    main: Callable[[Member, Member], Awaitable[None]],
    prefetch_bytes: int = _PREFETCH_BYTES,
) -> None:
    run(
        postgres.create_database(),
        folder,
        main,
        shared_versions_uri=str(folder / "shared"),
        prefetch_bytes=prefetch_bytes,
    )


def test_the_owner_of_a_version_has_its_files_before_a_request(postgres: Postgres, tmp_path: Path) -> None:
    """And no others, until it gets them: when the other server leaves."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        maker, other = await create_versions((a, b), model, owned=1)
        await until(lambda: list_fetched(other) >= list_owned(other))
        assert list_fetched(other) == list_owned(other)

        placement_of(maker).begin_drain()
        everything = {record.uid for record in other.state.versions.values()}
        await until(lambda: list_owned(other) == everything)
        await until(lambda: list_fetched(other) == everything)

    run_with_prefetch(postgres, tmp_path, main)


def test_what_cannot_be_fetched_keeps_no_other_from_it(
    postgres: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared, model = tmp_path / "shared", write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        maker, other = await create_versions((a, b), model, owned=0)
        for member in (a, b):
            await member.gateway._supervisor.loops["packs"].stop()  # or the lost pack is made again
        await create_version(maker, model, "last")
        await other.until_version(VersionName("p", "m", "last"), VersionState.READY)
        sharing = other.sharing._version_sharing
        assert sharing is not None
        await until(lambda: list_fetched(other) >= list_owned(other) and not sharing._fetches)
        lost, *rest = (record.uid for record in other.state.versions.values())
        (pack,) = (pack for pack in find_files(shared, ".pack") if pack.parent.name == lost)
        pack.unlink()
        for uid in list_fetched(other):
            await sharing._evict(uid, lambda _: True)

        placement_of(maker).begin_drain()
        await until(lambda: list_fetched(other) == set(rest))
        await until(lambda: "cannot be fetched ahead" in caplog.text)

    run_with_prefetch(postgres, tmp_path, main)


def test_nothing_is_fetched_ahead_beyond_the_setting(postgres: Postgres, tmp_path: Path) -> None:
    """A request still gets its files."""
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        _, other = await create_versions((a, b), model, owned=1)
        await prefetcher_of(other).run_round()
        assert not list_fetched(other)
        uid, *_ = list_owned(other)
        (name,) = (record.name for record in other.state.versions.values() if record.uid == uid)
        answer = await other.call("POST", f"/v1/{name}:predict", {"instances": [[1.0]]})
        assert answer == {"predictions": [3.0]}
        assert list_fetched(other) == {uid}

    run_with_prefetch(postgres, tmp_path, main, prefetch_bytes=0)


def test_a_version_that_changes_while_it_is_fetched_is_scaled_as_it_is_then(
    postgres: Postgres, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model")

    async def main(a: Member, b: Member) -> None:
        maker, other = await create_versions((a, b), model, owned=1)
        uid, *_ = list_owned(other)
        record, scaler = other.gateway._reconciler.find_record(uid), other.gateway._autoscaler.versions[uid]
        sharing, before = other.sharing._version_sharing, scaler.scaling
        assert record is not None
        assert sharing is not None
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(_TRANSFERS):
                await stack.enter_async_context(sharing._transfers)
            fetching = asyncio.create_task(other.gateway._reconciler.fetch_files(record))
            await until(lambda: uid in sharing._fetches)
            await maker.call(
                "PATCH",
                f"/v1/{record.name}?updateMask=autoScaling.maxNodes",
                {"autoScaling": {"maxNodes": 7}},
            )
            await until(lambda: scaler.scaling != before)
            changed = scaler.scaling
        await fetching

        assert list_fetched(other) == {uid}
        assert scaler.scaling == changed

    run_with_prefetch(postgres, tmp_path, main, prefetch_bytes=0)
