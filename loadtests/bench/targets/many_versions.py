"""Copies of a deployed version in the state of a server that does not run: thousands in a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from serving.gateway.state.records import ModelRecord, Record
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName


def replace_with_copies(state_dir: Path, models: int, versions: int) -> Sequence[VersionName]:
    """Put `models` with so many `versions` each in place of the one that there is; returns their names.

    They share its files, and are scaled by the server's defaults.
    """
    store = SqliteStore(state_dir / "state.db")
    try:
        state = store.load()
        (source,) = state.versions.values()
        model = state.models[source.name.parent].model
        changes: dict[tuple[str, str], Record | None] = {
            ("models", str(source.name.parent)): None,
            ("versions", str(source.name)): None,
        }
        names: list[VersionName] = []
        for number in range(models):
            parent = ModelName(source.name.project, f"model_{number:03}")
            copied = msgspec.structs.replace(model, name=str(parent))
            changes["models", str(parent)] = ModelRecord(name=parent, model=copied, default="v0")
            for last in range(versions):
                name = VersionName(parent.project, parent.model, f"v{last}")
                version = msgspec.structs.replace(
                    source.version, name=str(name), auto_scaling=None, manual_scaling=None
                )
                # The folder of the files is kept for the version that has this uid.
                uid = f"{len(names):016x}" if names else source.uid
                changes["versions", str(name)] = msgspec.structs.replace(
                    source, name=name, uid=uid, version=version
                )
                names.append(name)
        store.commit(changes)
    finally:
        store.close()
    return names
