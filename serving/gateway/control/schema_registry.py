"""The input and output schemas of versions: kept in their records, or read from a node's report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from autoscaler.activator import Activator
from autoscaler.pools import Node
from autoscaler.supervision import Supervisor
from serving.errors import FailedPrecondition, Internal
from serving.gateway.catalog import Catalog
from serving.gateway.catalog import versions as version_rules
from serving.gateway.proxy.retry import translate_scaling_errors
from serving.gateway.proxy.routing_table import RoutingTable
from serving.gateway.proxy.timeouts import Deadline
from serving.gateway.state.records import VersionRecord
from serving.model_schema import ModelSchema, unpack_outline, unpack_schema
from serving.resources import VersionState

logger = logging.getLogger(__name__)


def read_reported_schema(report: Mapping[str, Any]) -> str:
    """The packed schema in a node's report; "" where there is none. User code may have written it."""
    text = report.get("schema")
    if not isinstance(text, str) or not text:
        return ""
    try:
        unpack_outline(text)
    except ValueError:
        logger.warning("a node reported a schema that cannot be read")
        return ""
    return text


class SchemaRegistry:
    """The schemas of versions; `timeout` is how many seconds a request may wait for a node's report.

    Versions that are older than schemas have none until one of their nodes starts.
    """

    def __init__(
        self,
        catalog: Catalog,
        routing_table: RoutingTable,
        activator: Activator,
        timeout: float,
        supervisor: Supervisor,
    ) -> None:
        self._catalog = catalog
        self._routing_table = routing_table
        self._activator = activator
        self._timeout = timeout
        self._supervisor = supervisor

    def record_schema(self, record: VersionRecord | None, node: Node) -> None:
        """Keep the schema that a started node of a READY version reported, if the version has none."""
        if record is not None and record.deployed is not None and not record.deployed.schema:
            text = read_reported_schema(node.report)
            if text:
                self._supervisor.start_task(
                    "schema", self._write_schema(record, text), title=str(record.name)
                )

    async def _write_schema(self, record: VersionRecord, text: str) -> None:
        self._catalog.clear_work_fence()
        await self._catalog.change(version_rules.record_schema, record.name, record.uid, text)

    async def fetch_schema(self, record: VersionRecord) -> ModelSchema:
        """The schema of a version; a node is started if it is not known otherwise.

        Raises FailedPrecondition unless the version is READY, and the errors that predictions raise.
        """
        if record.version.state is not VersionState.READY:
            raise FailedPrecondition(
                f"The version {record.name} is {record.version.state}: what it takes and answers is known "
                "once it is READY."
            )
        if record.deployed is not None and record.deployed.schema:
            return unpack_schema(record.deployed.schema)
        target = self._routing_table.find_version_target(record)
        deadline = Deadline(asyncio.get_running_loop().time() + self._timeout, self._timeout)
        with translate_scaling_errors(target):
            async with self._activator.lease(target.spec, 0, deadline) as lease:
                text = read_reported_schema(lease.node.report)
        if not text:
            raise Internal(f"The node of {record.name} reported no input and output schema.")
        return unpack_schema(text)
