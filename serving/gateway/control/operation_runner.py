"""Runs long-running operations, and resumes them after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from autoscaler.supervision import Supervisor
from serving.config import ServeConfig
from serving.errors import Cancelled, Internal, ServingError, find_shortage
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import operations as operation_rules
from serving.gateway.catalog import versions as version_rules
from serving.gateway.control.deployment import VersionDeployer
from serving.gateway.state.catalog_state import Commit
from serving.gateway.state.records import OperationRecord, VersionRecord
from serving.resources import Operation, Version, VersionState

logger = logging.getLogger(__name__)


class OperationRunner:
    """Runs operations as tasks of the supervisor.

    One that fails for a reason of the server's own is retried after `retry_after` seconds.
    """

    def __init__(
        self,
        catalog: Catalog,
        deployment: VersionDeployer,
        supervisor: Supervisor,
        config: ServeConfig,
        *,
        retry_after: float = 5.0,
    ) -> None:
        self._catalog = catalog
        self._deployment = deployment
        self._supervisor = supervisor
        self._retry_after = retry_after
        self._slots = asyncio.Semaphore(config.deployments)
        self._running: dict[str, asyncio.Task[None]] = {}

    async def check_sources(self, version: Version) -> None:
        await self._deployment.check_sources(version)

    async def check_logging(self, version: Version) -> None:
        await self._deployment.check_logging(version)

    def begin(self, operation: Operation) -> None:
        """Start an operation that was just committed, unless it is another server's."""
        if not self._catalog.owns_work or operation.name in self._running:
            return
        record = self._catalog.state.operations[operation.name]
        task = self._supervisor.start_task("operation", self._run_to_end(record), title=record.name)
        self._running[record.name] = task
        task.add_done_callback(lambda _: self._running.pop(record.name, None))

    def resume(self) -> None:
        """Restart every operation that a stop or a kill left unfinished."""
        for record in operation_rules.list_unfinished_operations(self._catalog.state):
            logger.info("taking up %s again", record.name)
            self.begin(record.operation)

    async def cancel(self, name: str) -> None:
        """Cancel a creation that is running; other operations, and what is done already, go on."""
        record = await self._catalog.change(operation_rules.cancel_operation, name)
        task = self._running.get(name)
        if task is not None and record.operation.metadata.operation_type == "CREATE_VERSION":
            task.cancel(_CANCELLED)

    def suspend(self) -> None:
        """Cancel all work without recording it; `resume` restarts it."""
        for task in list(self._running.values()):
            task.cancel()

    async def hand_over(self) -> None:
        """Cancel all work, which another server goes on with, and wait for its end."""
        running = dict(self._running)
        self.suspend()
        if running:
            await asyncio.wait(running.values())
        operations, versions = self._catalog.state.operations, self._catalog.state.versions
        for name in running.keys() & operations.keys():
            target = operations[name].target
            record = versions.get(target) if target is not None else None
            if record is not None and record.version.state is VersionState.CREATING:
                await self._deployment.stop(record)

    def apply_commit(self, commit: Commit) -> None:
        """Begin and cancel operations as other servers have been asked to."""
        if not self._catalog.owns_work:
            return
        for record in commit.changes.values():
            if not isinstance(record, OperationRecord) or record.operation.done:
                continue
            task = self._running.get(record.name)
            if task is None:
                self.begin(record.operation)
            else:
                self._cancel_if_requested(record, task)

    def _cancel_if_requested(self, record: OperationRecord, task: asyncio.Task[None]) -> None:
        metadata = record.operation.metadata
        if metadata.is_cancellation_requested and metadata.operation_type == "CREATE_VERSION":
            task.cancel(_CANCELLED)

    async def _run_to_end(self, record: OperationRecord) -> None:
        self._catalog.set_work_fence()
        while not self._catalog.state.operations[record.name].operation.done:
            try:
                await self._perform_operation(self._catalog.state.operations[record.name])
            except Exception as error:
                context = f"{record.name}; tried again in {self._retry_after:g} s"
                self._supervisor.report_error("operation", error, context)
                await self._wait_to_retry()

    async def _wait_to_retry(self) -> None:
        try:
            await asyncio.sleep(self._retry_after)
        except asyncio.CancelledError as error:
            if error.args != (_CANCELLED,):
                raise  # the server stops

    async def _perform_operation(self, record: OperationRecord) -> None:
        target = record.target
        if target is None:
            return
        version = self._catalog.state.versions[target]
        match record.operation.metadata.operation_type:
            case "CREATE_VERSION":
                await self._create_version(record, version)
            case "DELETE_VERSION":
                await self._deployment.remove(version)
                await self._catalog.change_with_retry(version_rules.finish_delete, record.name)

    async def _create_version(self, record: OperationRecord, version: VersionRecord) -> None:
        operation = record.name

        async def enter_phase(phase: str) -> None:
            await self._record_progress(operation_rules.enter_phase, operation, phase)

        failure: ServingError
        try:
            _check_not_cancelled(record)
            async with self._slots:
                deployed, warnings = await self._deployment.deploy(version, enter_phase)
            await self._record_progress(version_rules.complete_create, operation, deployed, warnings)
        except _NotRecordedError:
            raise  # not the version's fault: the whole operation is retried
        except ServingError as error:
            failure = error
        except asyncio.CancelledError as error:
            if error.args != (_CANCELLED,):
                raise  # the server stops
            failure = Cancelled("The operation was cancelled.")
        except Exception as error:
            logger.exception("%s failed", operation)
            failure = find_shortage(error) or Internal(f"{type(error).__name__}: {error}")
        else:
            logger.info("%s is ready", version.name)
            return
        logger.warning("%s failed: %s", version.name, failure.message)
        await self._deployment.stop(version)
        await self._catalog.change_with_retry(version_rules.fail_create, operation, failure)

    async def _record_progress(self, rule: Callable[..., Any], *arguments: Any) -> None:
        """Raises the ServingError of the rule, or _NotRecordedError."""
        try:
            await self._catalog.change_with_retry(rule, *arguments)
        except ServingError:
            raise
        except Exception as error:
            raise _NotRecordedError(str(error)) from error


class _NotRecordedError(Exception):
    """The progress of an operation could not be written."""


def _check_not_cancelled(record: OperationRecord) -> None:
    """Raises Cancelled if the operation was cancelled just before the server stopped."""
    if record.operation.metadata.is_cancellation_requested:
        raise Cancelled("The operation was cancelled.")


_CANCELLED = "cancelled by request"
