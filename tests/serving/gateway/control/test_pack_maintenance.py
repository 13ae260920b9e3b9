"""Which packs may be removed, and which versions lack theirs."""

from __future__ import annotations

from serving.gateway.control.pack_maintenance import compare_packs
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
