"""The status of models and versions for other protocols, from the catalog's records.

No node is started for it: a version without nodes answers predictions too, so it counts as ready.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.errors import FailedPrecondition, NotFound
from serving.gateway.catalog.lookup import address_to_name, resolve_version
from serving.gateway.state.records import CatalogState, VersionRecord
from serving.names import VersionName
from serving.protocols.addresses import ModelAddress
from serving.protocols.tensorflow_metadata import ServableState, VersionStatus
from serving.resources import VersionState

_STATES: Mapping[VersionState | None, ServableState] = {
    VersionState.CREATING: ServableState.LOADING,
    VersionState.READY: ServableState.AVAILABLE,
    VersionState.UPDATING: ServableState.LOADING,
    VersionState.DELETING: ServableState.UNLOADING,
    VersionState.FAILED: ServableState.END,
}


def list_statuses(state: CatalogState, address: ModelAddress) -> list[VersionStatus]:
    """The status of the addressed version, or of all versions of the model. Raises NotFound."""
    return [get_status(record) for record in find_versions(state, address)]


def find_versions(state: CatalogState, address: ModelAddress) -> list[VersionRecord]:
    """The addressed version, or all versions of the model. Raises NotFound."""
    name = address_to_name(state, address)
    if isinstance(name, VersionName):
        return [state.versions[name]]
    versions = [state.versions[child] for child in state.version_order.list_children(name)]
    if not versions:
        raise NotFound(f"Could not find any versions of model {name}.")
    return versions


def is_ready(state: CatalogState, address: ModelAddress) -> bool:
    """Whether predictions for an address are answered. Raises NotFound."""
    name = address_to_name(state, address)
    try:
        resolve_version(state, name)
    except FailedPrecondition:
        return False
    return True


def get_status(record: VersionRecord) -> VersionStatus:
    version = record.version
    error = version.error_message if version.state is VersionState.FAILED else ""
    return VersionStatus(record.name.version, _STATES.get(version.state, ServableState.UNKNOWN), error)
