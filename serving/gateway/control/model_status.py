"""What other people's protocols are told of models and their versions, from what the server remembers.

No node is woken for it: a version that sleeps answers, so it is as good as one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.errors import FailedPrecondition, NotFound
from serving.gateway.catalog.lookup import address_to_name, resolve_version
from serving.gateway.state.records import CatalogState as Records
from serving.gateway.state.records import VersionRecord
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


def list_statuses(records: Records, asked: ModelAddress) -> list[VersionStatus]:
    """How it stands with the version that is named, or with all of the model. Raises NotFound."""
    return [get_status(record) for record in find_versions(records, asked)]


def find_versions(records: Records, asked: ModelAddress) -> list[VersionRecord]:
    """The version that is named, or all of the model. Raises NotFound."""
    name = address_to_name(records, asked)
    if isinstance(name, VersionName):
        return [records.versions[name]]
    found = [records.versions[one] for one in records.version_order.list_children(name)]
    if not found:
        raise NotFound(f"Could not find any versions of model {name}.")
    return found


def is_ready(records: Records, asked: ModelAddress) -> bool:
    """Whether predictions for an address are answered. Raises NotFound for what is not there."""
    name = address_to_name(records, asked)
    try:
        resolve_version(records, name)
    except FailedPrecondition:
        return False
    return True


def get_status(record: VersionRecord) -> VersionStatus:
    """How it stands with a version."""
    version = record.version
    error = version.error_message if version.state is VersionState.FAILED else ""
    return VersionStatus(record.name.version, _STATES.get(version.state, ServableState.UNKNOWN), error)
