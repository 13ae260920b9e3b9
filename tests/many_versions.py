"""A state folder with versions that sleep, as if they had been created."""

from __future__ import annotations

from pathlib import Path

from serving.gateway.state.records import DeploymentInfo, ModelRecord, Record, VersionRecord
from serving.gateway.state.store import SqliteStore
from serving.names import ModelName, VersionName
from serving.resources import Model, Version, VersionState

VERSIONS = 10


def deploy(state_dir: Path, models: int, versions: int = VERSIONS) -> None:
    """Models `m000`, `m001` and so on of the project `p` have so many READY versions each, from `v0` on."""
    changes: dict[tuple[str, str], Record | None] = {}
    for number in range(models):
        model = ModelName("p", f"m{number:03}")
        changes["models", str(model)] = ModelRecord(name=model, model=Model(name=str(model)), default="v0")
        for last in range(versions):
            name, uid = VersionName("p", model.model, f"v{last}"), f"{number * versions + last:016x}"
            folder = f"{state_dir}/versions/{uid}/model"
            changes["versions", str(name)] = VersionRecord(
                name=name,
                uid=uid,
                version=Version(
                    name=str(name),
                    state=VersionState.READY,
                    framework="SCIKIT_LEARN",
                    deployment_uri=f"gs://models/of/somebody/{uid}",
                    create_time="2026-01-01T00:00:00Z",
                    etag="bm9ib2R5",
                ),
                deployed=DeploymentInfo(model_dir=folder, framework="SCIKIT_LEARN", memory=1 << 24),
            )
    state_dir.mkdir(parents=True, mode=0o700)
    store = SqliteStore(state_dir / "state.db")
    store.commit(changes)
    store.close()
