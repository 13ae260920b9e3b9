"""Which packs may be removed, and which versions lack theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import cast

import pytest

from serving.errors import InvalidArgument, PermissionDenied
from serving.gateway.catalog.shared_catalog import SharedCatalog
from serving.gateway.control.pack_maintenance import PackMaintenance, compare_packs
from serving.gateway.control.version_sharing import VersionSharing
from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import DeploymentInfo, ModelRecord, VersionRecord
from serving.names import ModelName, VersionName
from serving.resources import Model, Version, VersionState

READY, CREATING, DELETING = VersionState.READY, VersionState.CREATING, VersionState.DELETING


def version(uid: str, state: VersionState, pack: str | None) -> VersionRecord:
    """A version named after its uid; `pack` None: it is not deployed yet."""
    deployed = None if pack is None else DeploymentInfo(model_dir="/model", pack=pack)
    name = VersionName("p", "m", uid)
    return VersionRecord(name=name, uid=uid, version=Version(state=state), deployed=deployed)


def state_of(*versions: VersionRecord) -> CatalogState:
    draft = StateDraft(CatalogState())
    draft.put(ModelRecord(name=ModelName("p", "m"), model=Model()))
    for record in versions:
        draft.put(record)
    return draft.to_state()


def test_what_a_state_has_no_use_for_is_removed() -> None:
    """Never what a creation or a deletion that is under way may still need, and never what is read."""
    state = state_of(
        version("ready", READY, "1"),
        version("packed-twice", READY, "1"),
        version("creating", CREATING, None),
        version("deleting", DELETING, "1"),
        version("old", READY, ""),
    )
    packs = {
        ("ready", "1"), ("packed-twice", "1"), ("packed-twice", "2"), ("creating", "1"), ("deleting", "2"),
        ("old", "1"), ("gone", "1"), ("gone", "2"),
    }  # fmt: skip

    surplus, missing = compare_packs(packs, state)

    assert surplus == ["gone", "packed-twice/2"]
    assert [record.uid for record in missing] == ["old"]


def test_a_ready_version_needs_its_own_pack() -> None:
    """Another one may be what is being made in its place."""
    state = state_of(version("a", READY, "1"), version("b", READY, "1"), version("c", CREATING, None))

    surplus, missing = compare_packs({("a", "1"), ("b", "2")}, state)

    assert surplus == []
    assert [record.uid for record in missing] == ["b"]


class FakeCatalog:
    owns_work = True

    def __init__(self, state: CatalogState) -> None:
        self.state = state

    async def refresh(self) -> None: ...


class BrokenSharing:
    """The versions `unpackable` cannot be packed, and no pack can be removed."""

    def __init__(self, packs: set[tuple[str, str]], unpackable: Collection[str]) -> None:
        self._packs = packs
        self._unpackable = unpackable
        self.evictions = 0

    async def list_packs(self) -> set[tuple[str, str]]:
        return set(self._packs)

    async def remove_packs(self, names: Sequence[str]) -> None:
        raise PermissionDenied("The server may not write there.")

    async def can_publish(self, record: VersionRecord) -> bool:
        return True

    async def publish(self, record: VersionRecord, deployed: DeploymentInfo) -> str:
        if record.uid in self._unpackable:
            raise InvalidArgument(f"{record.uid} cannot be packed.")
        self._packs.add((record.uid, deployed.pack))
        return deployed.pack

    async def evict_files(
        self, packs: Collection[tuple[str, str]], is_evictable: Callable[[str], bool], in_use: Collection[str]
    ) -> None:
        self.evictions += 1


def test_what_cannot_be_packed_or_removed_keeps_nothing_else_waiting() -> None:
    """For ever, as it did: no other version was packed, and no room made on the server."""
    packs = {("gone", "1")}
    sharing = BrokenSharing(packs, "ac")
    catalog = FakeCatalog(state_of(*(version(uid, READY, "1") for uid in "abcd")))
    maintenance = PackMaintenance(
        cast(SharedCatalog, catalog), cast(VersionSharing, sharing), find_awake=lambda: ()
    )

    async def main() -> None:
        for rounds in range(1, 4):
            with pytest.raises(InvalidArgument, match="cannot be packed"):
                await maintenance.maintain()
            assert sharing.evictions == rounds
        assert packs == {("gone", "1"), ("b", "1"), ("d", "1")}

    asyncio.run(main())
