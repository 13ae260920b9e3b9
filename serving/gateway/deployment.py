"""A version as the processes that serve it see it: preparing its files, and how its nodes are started."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from autoscaler.activator import Activator
from autoscaler.errors import RetiredError, StartFailedError
from autoscaler.pools import Node, NodePool, NodeSpec
from serving import prepare
from serving.config import FRAMEWORK_ENVIRONMENT, PredictSettings, ServeConfig
from serving.errors import (
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServingError,
    Unavailable,
)
from serving.gateway.records import Deployed, VersionRecord

NODE_ENTRY = "serving.node.main:start"

_LIBRARIES = ("pilotlight", "numpy", "scikit-learn", "xgboost", "tensorflow")
_LINE_LIMIT = 1 << 20

EnterPhase = Callable[[str], Awaitable[None]]


class Deployment:
    """Prepares, starts and removes versions; `environment` is that of the server's own process."""

    def __init__(
        self, config: ServeConfig, environment: Mapping[str, str], activator: Activator, pool: NodePool
    ) -> None:
        self._config = config
        self._environment = environment
        self._activator = activator
        self._pool = pool
        self._folder = config.state_dir / "versions"

    def spec(self, record: VersionRecord) -> NodeSpec:
        """How nodes of a version are started."""
        deployed = record.deployed or Deployed(model_dir=str(self._folder / record.uid / "model"))
        return NodeSpec(
            key=record.uid,
            title=str(record.name),
            entry=NODE_ENTRY,
            arguments={
                "model_dir": deployed.model_dir,
                "framework": deployed.framework or _framework(record),
                "prediction_class": record.version.prediction_class,
                "packages": deployed.packages,
                "settings": self._settings(deployed),
            },
            environment={
                **self._environment,
                **FRAMEWORK_ENVIRONMENT,
                "PYTHONUNBUFFERED": "1",
                "create_version_request": _create_version_request(record),
            },
            start_timeout=self._config.start_timeout,
            concurrency=self._config.node_concurrency,
        )

    async def deploy(
        self, record: VersionRecord, enter_phase: EnterPhase
    ) -> tuple[Deployed, tuple[str, ...]]:
        """Fetch, install, start a node, load, warm.

        Returns what was found out and warnings for the owner. Raises the ServingError that says why not.
        """
        prepared = await self._prepare(record, enter_phase)
        await enter_phase("LOADING")
        deployed = Deployed(model_dir=prepared.model_dir, packages=prepared.packages)
        spec = self.spec(msgspec.structs.replace(record, deployed=deployed))
        report = await self._first_report(spec)
        deployed = msgspec.structs.replace(
            deployed, framework=report["framework"], merge=report["merge"], fingerprint=fingerprint()
        )
        return deployed, (*prepared.warnings, *report["warnings"])

    async def remove(self, record: VersionRecord) -> None:
        """Stop a version's nodes and delete its files. Requests in flight finish."""
        await self.stop(record)
        await asyncio.to_thread(shutil.rmtree, self._folder / record.uid, ignore_errors=True)

    async def stop(self, record: VersionRecord) -> None:
        """Stop a version's nodes."""
        self._activator.retire(record.uid)
        await self._pool.scale(self.spec(record), 0)

    def sweep(self, uids: set[str]) -> None:
        """Delete the files of versions that no longer exist (a kill may have left some)."""
        if self._folder.is_dir():
            for leftover in self._folder.iterdir():
                if leftover.name not in uids:
                    shutil.rmtree(leftover, ignore_errors=True)

    def _settings(self, deployed: Deployed) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(PredictSettings))
        settings = {name: getattr(self._config, name) for name in names}
        if settings["merge_requests"] == "auto" and deployed.fingerprint == fingerprint():
            settings["merge_requests"] = "on" if deployed.merge else "off"
        return settings

    async def _prepare(self, record: VersionRecord, enter_phase: EnterPhase) -> prepare.Prepared:
        """Run `python -m serving.prepare`; its last word is the result or the reason it failed."""
        request = prepare.Request(
            deployment_uri=record.version.deployment_uri,
            package_uris=record.version.package_uris,
            destination=str(self._folder / record.uid),
            cache_dir=str(self._config.state_dir / "cache"),
            cache_bytes=self._config.cache_bytes,
        )
        remote_lifeline, lifeline = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "serving.gateway.child", str(remote_lifeline), "serving.prepare",
                pass_fds=(remote_lifeline,),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=dict(self._environment),
                limit=_LINE_LIMIT,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(remote_lifeline)
        if child.stdin is None or child.stdout is None:
            raise Internal("The preparing process has no pipes.")
        last = prepare.Report()
        try:
            child.stdin.write(msgspec.json.encode(request))
            child.stdin.close()
            while line := await child.stdout.readline():
                last = msgspec.json.decode(line, type=prepare.Report)
                if last.phase is not None:
                    await enter_phase(last.phase)
            code = await child.wait()
        finally:
            os.close(lifeline)  # if it is still at work, it ends now, and pip with it
        if last.failed is not None:
            raise _error(last.failed)
        if last.done is None:
            raise Internal(f"Preparing the version ended with exit code {code} and without a word.")
        return last.done

    async def _first_report(self, spec: NodeSpec) -> Mapping[str, Any]:
        async def forever(granted: asyncio.Future[Node]) -> Node:
            return await granted  # the pool bounds it by start_timeout

        try:
            async with self._activator.lease(spec, 0, forever) as node:
                return node.report
        except StartFailedError as error:
            raise InvalidArgument(error.reason) from error
        except RetiredError as error:
            raise Cancelled("The version was deleted.") from error


def _framework(record: VersionRecord) -> str:
    return "CUSTOM" if record.version.prediction_class else record.version.framework


def _create_version_request(record: VersionRecord) -> str:
    """What AI Platform told custom routines about their version, in the environment. Contract 3.5."""
    version = {
        "name": str(record.name),
        "deployment_uri": record.version.deployment_uri,
        "prediction_class": record.version.prediction_class,
        "package_uris": list(record.version.package_uris),
    }
    return json.dumps({"version": version})


@lru_cache
def fingerprint() -> str:
    """The libraries that what was found out about a model holds for."""
    found = []
    for name in _LIBRARIES:
        try:
            found.append(f"{name}={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return " ".join(found)


def _error(failed: prepare.Failed) -> ServingError:
    kinds = (InvalidArgument, NotFound, PermissionDenied, FailedPrecondition, Unavailable)
    return next((kind for kind in kinds if kind.status == failed.status), Internal)(failed.message)
