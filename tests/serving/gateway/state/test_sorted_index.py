"""Names in the order of lists, kept from state to state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.state.catalog_state import CatalogState, StateDraft
from serving.gateway.state.records import ModelRecord, VersionRecord
from serving.gateway.state.sorted_index import SortedIndex
from serving.names import ModelName, VersionName
from serving.resources import Model, Version

NAMES = st.builds(VersionName, st.sampled_from("pq"), st.sampled_from("mno"), st.sampled_from("abcd"))


@given(st.lists(NAMES, max_size=30))
def test_an_order_that_was_changed_is_that_of_what_is_there(names: list[VersionName]) -> None:
    """Whatever came and went: each name that comes a second time goes."""
    there: set[VersionName] = set()
    order: SortedIndex[ModelName, VersionName] = SortedIndex.from_names(there, lambda name: name.parent)
    for name in names:
        change = order.without_name if name in there else order.with_name
        order = change(name.parent, name)
        there ^= {name}

    assert order == SortedIndex.from_names(there, lambda name: name.parent)
    assert all(order.list_children(name.parent) for name in there)


@given(st.lists(NAMES, unique=True, max_size=20), st.data())
def test_a_state_keeps_its_order(names: list[VersionName], data: st.DataObject) -> None:
    """A draft hands it on; what replaces a record changes nothing in it."""
    state = CatalogState()
    for name in names:
        draft = StateDraft(state)
        if name.parent not in draft.models:
            draft.put(ModelRecord(name=name.parent, model=Model()))
        draft.put(VersionRecord(name=name, uid=str(name), version=Version()))
        state = draft.to_state()
    gone = set(data.draw(st.lists(st.sampled_from(names), unique=True))) if names else set()
    for name in names:
        draft = StateDraft(state)
        if name in gone:
            draft.delete(state.versions[name])
        else:
            draft.put(state.versions[name])
        state = draft.to_state()

    left = sorted(set(names) - gone)
    assert [record.name for record in state.sorted_versions] == left
    assert state.version_order == CatalogState(versions=state.versions).version_order
    assert state.model_order == CatalogState(models=state.models).model_order
