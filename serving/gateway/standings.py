"""What other people's protocols are told of models and their versions, from what the server remembers.

No node is woken for it: a version that sleeps answers, so it is as good as one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from serving.errors import FailedPrecondition, NotFound
from serving.gateway.catalog.lookup import name_of, resolve
from serving.gateway.records import State as Records
from serving.gateway.records import VersionRecord
from serving.names import VersionName
from serving.protocols.addresses import Address
from serving.protocols.tensorflow_status import Standing, State
from serving.resources import VersionState

_STATES: Mapping[VersionState | None, State] = {
    VersionState.CREATING: State.LOADING,
    VersionState.READY: State.AVAILABLE,
    VersionState.UPDATING: State.LOADING,
    VersionState.DELETING: State.UNLOADING,
    VersionState.FAILED: State.END,
}


def standings(records: Records, asked: Address) -> list[Standing]:
    """How it stands with the version that is named, or with all of the model. Raises NotFound."""
    return [standing_of(record) for record in versions_of(records, asked)]


def versions_of(records: Records, asked: Address) -> list[VersionRecord]:
    """The version that is named, or all of the model. Raises NotFound."""
    name = name_of(records, asked)
    if isinstance(name, VersionName):
        return [records.versions[name]]
    found = [records.versions[one] for one in records.version_order.below(name)]
    if not found:
        raise NotFound(f"Could not find any versions of model {name}.")
    return found


def is_ready(records: Records, asked: Address) -> bool:
    """Whether predictions for an address are answered. Raises NotFound for what is not there."""
    name = name_of(records, asked)
    try:
        resolve(records, name)
    except FailedPrecondition:
        return False
    return True


def standing_of(record: VersionRecord) -> Standing:
    """How it stands with a version."""
    version = record.version
    error = version.error_message if version.state is VersionState.FAILED else ""
    return Standing(record.name.version, _STATES.get(version.state, State.UNKNOWN), error)
