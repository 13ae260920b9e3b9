"""Deploys versions: prepares their files and specifies how their nodes are started."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from autoscaler.activator import Activator
from autoscaler.child_launcher import module_command, run_child
from autoscaler.decision import ScalingSpec
from autoscaler.errors import RetiredError, StartFailedError, TooLateError
from autoscaler.placement.ownership import NodeShare, share_scaling
from autoscaler.pools import Node, NodeLimits, NodeSpec, PilotSpec
from autoscaler.scaling_loop import Autoscaler
from serving import acceleration_record
from serving.acceleration_record import RecordLocation
from serving.artifacts import prepare
from serving.artifacts.child_environment import sanitize_environment
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.artifacts.trusted_sources import TrustedSources, check_local_uri, parse_local_folder
from serving.config import FRAMEWORK_ENVIRONMENT, PredictSettings, ServeConfig
from serving.container_engine import check_engine, engine_environment, find_engine, make_run_config
from serving.errors import (
    Cancelled,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
    field_error,
)
from serving.frameworks import find_user_code_framework
from serving.gateway.control.file_check import FileFindings, inspect_folder
from serving.gateway.control.pilot_specs import framework_pilot_spec, interpreter_pilot_spec
from serving.gateway.control.schema_registry import read_reported_schema
from serving.gateway.control.version_sharing import VersionSharing
from serving.gateway.state.records import DeploymentInfo, VersionRecord
from serving.gateway.thread_pool import ThreadPool
from serving.latency_histograms import NODE_BYTES
from serving.logs.sinks.writer_options import folder_of_address as log_folder
from serving.predictor import interpreters
from serving.predictor.interpreters import InterpreterRegistry
from serving.resources import AutoScaling, Version
from serving.scratch_folders import remove_folder

NODE_ENTRY = "serving.node.main:start"

_PREPARE_COMMAND = module_command("serving.artifacts.prepare")
# For checks of sources and the removal of files, which may be slow.
_THREADS = 4

# Seconds that a creation waits for its node beyond `start_timeout`.
_GRACE = 30.0
# Seconds in which the preparing process must begin.
_BEGIN_TIMEOUT = 10.0
# And that its process may take to end by itself: it ignores no signal, unless it is stopped.
_PREPARE_GRACE = 1.0
# The assumed memory of a node until one was measured: this many bytes, plus this factor times the model's
# files.
_BASE_MEMORY, _MEMORY_PER_FILE_BYTE = 48 << 20, 2

# Machine types on which AI Platform served with TensorFlow Serving, see docs/api.md.
_BARE_MACHINE_TYPES = "n1-"

EnterPhase = Callable[[str], Awaitable[None]]


class FindShare(Protocol):
    """Says which part of a version's nodes is this server's; see `ServerPlacement`."""

    def __call__(self, key: str, *, has_floor: bool) -> NodeShare: ...


class VersionDeployer:
    """Prepares, starts and removes versions.

    `environment` is the server's own, of which nodes get what `sanitize_environment` leaves. `count_cores` is
    that of the pool. `sharing` is given where other servers have versions too. Raises InvalidArgument for
    invalid settings.
    """

    def __init__(
        self,
        config: ServeConfig,
        environment: Mapping[str, str],
        activator: Activator,
        autoscaler: Autoscaler,
        count_cores: Callable[[], int],
        *,
        sharing: VersionSharing | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._node_environment = sanitize_environment(environment, config.node_environment)
        self._limits = NodeLimits(config.node_memory_bytes, config.node_open_files, config.node_nice)
        self._sources = TrustedSources.from_setting(config.trusted_sources)
        self._folders = LocalFolderPolicy.from_setting(
            config.local_folders, config.state_dir, config.shared_versions_uri
        )
        self._interpreters = InterpreterRegistry(
            interpreters.parse_interpreters(config.runtime), config.state_dir
        )
        self._engine = find_engine(config.container_engine)
        self._activator = activator
        self._autoscaler = autoscaler
        self._count_cores = count_cores
        self._find_share: FindShare | None = None
        self._sharing = sharing
        self._folder = config.state_dir / "versions"
        self._threads = ThreadPool("versions", _THREADS)
        # Shared by all versions: its module list and environment are most of a version's memory here.
        self._framework_pilot = functools.cache(
            functools.partial(framework_pilot_spec, environment=self._node_environment)
        )
        self._interpreter_pilot = functools.cache(
            functools.partial(interpreter_pilot_spec, environment=self._node_environment)
        )

    def set_share_finder(self, find_share: FindShare) -> None:
        """Share the nodes of versions with other servers from now on."""
        self._find_share = find_share

    def find_node_limit(self, version: Version) -> int | None:
        """How many nodes a version may have on all servers together; None if that was not said."""
        if version.manual_scaling is not None and version.manual_scaling.nodes:
            return version.manual_scaling.nodes
        auto = version.auto_scaling or AutoScaling()
        return max(auto.min_nodes, auto.max_nodes or self._config.max_nodes) or None

    def build_node_spec(self, record: VersionRecord) -> NodeSpec:
        record = self._localize(record)
        deployed = record.deployed or DeploymentInfo(model_dir=str(self._folder / record.uid / "model"))
        acceleration = self.locate_acceleration_record(record)
        return NodeSpec(
            key=record.uid,
            title=str(record.name),
            entry=NODE_ENTRY,
            arguments={
                "model_dir": deployed.model_dir,
                "framework": deployed.framework or _declared_framework(record),
                "prediction_class": record.version.prediction_class,
                "method": record.version.prediction_method,
                "packages": deployed.packages,
                "settings": self._build_settings(deployed),
                "waking": bool(deployed.framework),
                "slots": self._config.node_concurrency,
                "acceleration": msgspec.to_builtins(acceleration),
                "schema": deployed.schema,
                "interpreter": deployed.interpreter,
                "container": self._build_container(record, deployed),
            },
            environment={
                **self._node_environment,
                **(engine_environment(self._environment) if record.version.container else {}),
                **FRAMEWORK_ENVIRONMENT,
                "PYTHONUNBUFFERED": "1",
                "create_version_request": render_create_version_request(record),
            },
            start_timeout=self._config.start_timeout,
            concurrency=self._config.node_concurrency,
            pilot=self.select_pilot(record),
            helper=self._select_helper_pilot(record),
            counter_bytes=NODE_BYTES,
            limits=self._limits,
        )

    def _build_container(self, record: VersionRecord, deployed: DeploymentInfo) -> dict[str, Any] | None:
        """The container that serves a version in place of a framework, as an argument of the node."""
        if record.version.container is None:
            return None
        container = make_run_config(
            record.version,
            record.name,
            self._engine,
            deployed.image,
            memory_bytes=self._config.node_memory_bytes,
            max_answer_bytes=self._config.max_answer_bytes,
            concurrency=min(self._config.container_concurrency, self._config.node_concurrency),
        )
        built: dict[str, Any] = msgspec.to_builtins(container)
        return built

    @property
    def is_acceleration_enabled(self) -> bool:
        """Whether versions may use accelerated code."""
        return self._config.acceleration != "off"

    def locate_acceleration_record(self, record: VersionRecord) -> RecordLocation | None:
        """None if the version must not be accelerated."""
        version = record.version
        deployed = record.deployed
        if (
            not self.is_acceleration_enabled
            or version.prediction_class
            or version.package_uris
            or version.container
        ):
            return None
        if version.prediction_method not in ("", "predict"):  # only predict is accelerated
            return None
        if deployed is not None and deployed.interpreter:
            return None
        digest = deployed.digest if deployed else ""
        key = acceleration_record.AccelerationKey(
            digest, acceleration_record.describe_libraries(), acceleration_record.describe_processor()
        )
        return RecordLocation(str(self._folder / record.uid / "acceleration"), key)

    def select_pilot(self, record: VersionRecord) -> PilotSpec:
        deployed = record.deployed or DeploymentInfo(model_dir="")
        framework = deployed.framework or _declared_framework(record)
        return self._framework_pilot(framework, deployed.pilot)

    def select_framework_pilot(self, framework: str) -> PilotSpec:
        """The pilot that has imported a framework, "" for any."""
        return self._framework_pilot(framework, "")

    def list_pilots(self, record: VersionRecord) -> tuple[PilotSpec, ...]:
        """All pilots that the nodes of a version need."""
        helper = self._select_helper_pilot(record)
        return (self.select_pilot(record),) if helper is None else (self.select_pilot(record), helper)

    def _select_helper_pilot(self, record: VersionRecord) -> PilotSpec | None:
        """The pilot of another interpreter; None if the version has its own, or the server's."""
        record = self._localize(record)
        interpreter = record.deployed.interpreter if record.deployed else ""
        if not interpreter or Path(interpreter).is_relative_to(self._folder / record.uid):
            return None
        return self._interpreter_pilot(interpreter)

    def _localize(self, record: VersionRecord) -> VersionRecord:
        return record if self._sharing is None else self._sharing.localize(record)

    def has_files(self, record: VersionRecord) -> bool:
        """Whether the files of a READY version are on this server, as far as it knows."""
        return self._sharing is None or self._sharing.is_here(record)

    async def fetch_files(self, record: VersionRecord) -> VersionRecord:
        """Have the files of a READY version on this server; returns the version with their paths.

        Raises a ServingError.
        """
        return record if self._sharing is None else await self._sharing.fetch(record)

    def track_version(self, record: VersionRecord) -> None:
        """Have the autoscaler scale the version from now on."""
        deployed = record.deployed or DeploymentInfo(model_dir="")
        scaling = build_scaling_spec(record.version, self._config, self._count_cores())
        if self._find_share is not None:
            share = self._find_share(record.uid, has_floor=has_floor(record.version))
            is_limited = self.find_node_limit(record.version) is not None
            scaling = share_scaling(scaling, share, divide_max=is_limited)
        self._autoscaler.track_version(
            self.build_node_spec(record),
            scaling,
            memory=deployed.memory or _BASE_MEMORY + _MEMORY_PER_FILE_BYTE * deployed.files_bytes,
            start_seconds=deployed.start_seconds or None,
        )

    async def deploy(
        self, record: VersionRecord, enter_phase: EnterPhase
    ) -> tuple[DeploymentInfo, tuple[str, ...]]:
        """Fetch, install, start a first node, load, warm up; the current setting must trust the sources.

        Returns warnings for the owner too. Raises the ServingError that the creation fails with.
        """
        await self.check_sources(record.version)
        prepared = await self._run_prepare(record, enter_phase)
        await enter_phase("LOADING")
        deployed = DeploymentInfo(
            model_dir=prepared.model_dir,
            digest=prepared.digest,
            packages=prepared.packages,
            pilot=prepared.pilot,
            files_bytes=await self._threads.run(_folder_size, Path(prepared.model_dir)),
            interpreter=prepared.interpreter,
            bare=record.version.machine_type.startswith(_BARE_MACHINE_TYPES),
            image=prepared.image,
        )
        prepared_record = msgspec.structs.replace(record, deployed=deployed)
        self.track_version(prepared_record)
        report = await self._start_first_node(self.build_node_spec(prepared_record))
        deployed = msgspec.structs.replace(
            deployed,
            framework=report["framework"],
            merge=report["merge"],
            exact=report["exact"],
            pilot=report["pilot"],
            fingerprint=acceleration_record.describe_libraries(),
            schema=read_reported_schema(report),
        )
        if self._sharing is not None:
            # Before it is READY: from then on every server answers for it, also if this one dies.
            await enter_phase("SHARING")
            pack = await self._sharing.publish(record, deployed)
            deployed = msgspec.structs.replace(deployed, pack=pack)
        return deployed, (*prepared.warnings, *report["warnings"])

    async def check_sources(self, version: Version) -> None:
        """Raises FailedPrecondition for a source that is not trusted, or a folder not open to callers."""
        await self._threads.run(self._check_sources, version)

    async def inspect_files(self, version: Version) -> FileFindings | None:
        """What a local folder holds; None where the files have yet to be fetched.

        Raises FailedPrecondition as `check_sources` does, InvalidArgument for no address, and Unavailable.
        """
        folder = parse_local_folder("version.deployment_uri", version.deployment_uri)
        await self.check_sources(version)
        if not folder:
            return None
        may_look_above = await self._threads.run(self._may_use_folder, str(Path(folder).parent))
        return await inspect_folder(version, folder, self._node_environment, may_look_above=may_look_above)

    async def check_logging(self, version: Version) -> None:
        """Raises FailedPrecondition for a request log in a folder that callers may not use."""
        config = version.request_logging_config
        if config is not None:
            await self._threads.run(self._check_log_folder, config.bigquery_table_name)

    async def remove(self, record: VersionRecord) -> None:
        """Stop a version's nodes and delete its files; requests in flight finish first."""
        await self.stop(record)
        if self._sharing is not None:
            self._sharing.forget(record.uid)
        await self._threads.run(remove_folder, self._folder / record.uid)

    async def stop(self, record: VersionRecord) -> None:
        """Stop a version's nodes and wait until they are gone."""
        if self._sharing is not None:
            await self._sharing.cancel(record.uid)
        await self._autoscaler.stop_version(record.uid)

    def delete_orphaned_files(self, uids: set[str]) -> None:
        """Delete the files of versions that no longer exist; a kill may leave some."""
        if self._folder.is_dir():
            for leftover in self._folder.iterdir():
                if leftover.name not in uids:
                    remove_folder(leftover)

    def _check_sources(self, version: Version) -> None:
        check_engine(self._engine, version)
        if version.container is not None:
            self._sources.check_image("version.container.image", version.container.image)
        self._sources.check_uris(list_sources(version))
        check_local_uri(self._folders, "version.deployment_uri", version.deployment_uri, whole=True)
        for uri in version.package_uris:
            check_local_uri(self._folders, "version.package_uris", uri)

    def _may_use_folder(self, folder: str) -> bool:
        """Whether callers may use a local folder, if not all that is below it."""
        try:
            self._folders.check_path(folder)
        except FailedPrecondition:
            return False
        return True

    def _check_log_folder(self, address: str) -> None:
        field = "version.request_logging_config.bigquery_table_name"
        try:
            folder = log_folder(address)
        except InvalidArgument as error:
            raise field_error(InvalidArgument, field, error.message) from error
        if folder is not None:
            check_local_uri(self._folders, field, str(folder.absolute()))

    def _build_settings(self, deployed: DeploymentInfo) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(PredictSettings))
        settings = {name: getattr(self._config, name) for name in names}
        if (
            settings["merge_requests"] == "auto"
            and deployed.fingerprint == acceleration_record.describe_libraries()
        ):
            settings["merge_requests"] = "on" if deployed.merge else "off"
        settings["single_output"] = (
            "bare" if deployed.answers_bare_output(self._config.single_output) else "object"
        )
        return settings

    async def _run_prepare(self, record: VersionRecord, enter_phase: EnterPhase) -> prepare.PreparedVersion:
        """Run `python -m serving.artifacts.prepare`; its last line is the result or why it failed."""
        request = prepare.PreparationRequest(
            deployment_uri=record.version.deployment_uri,
            package_uris=record.version.package_uris,
            destination=str(self._folder / record.uid),
            cache_dir=str(self._config.state_dir / "cache"),
            cache_bytes=self._config.cache_bytes,
            folders=self._folders,
            build_timeout=self._config.build_timeout,
            interpreter=self._interpreters.find_interpreter(record.version.runtime_version),
            runtime_version=record.version.runtime_version,
            image=record.version.container.image if record.version.container else "",
            engine=self._engine,
            keeps_archives=self._sharing is not None,
        )
        last = prepare.PreparationReport()
        running = run_child(
            _PREPARE_COMMAND,
            environment=self._environment,
            stdin=msgspec.json.encode(request),
            grace_seconds=_PREPARE_GRACE,
        )
        async with running as child:
            while line := await self._next_line(child.output):
                last = msgspec.json.decode(line, type=prepare.PreparationReport)
                if last.phase is not None:
                    await enter_phase(last.phase)
            code = await child.wait_until_gone()
        if last.failed is not None:
            raise prepare.to_serving_error(last.failed)
        if last.done is None:
            raise Internal(f"The preparing process exited with code {code} without a result.")
        return last.done

    async def _next_line(self, output: asyncio.StreamReader) -> bytes:
        """The next line of the preparing process. Raises Unavailable if it reports nothing for too long."""
        seconds = self._config.build_timeout + _BEGIN_TIMEOUT
        try:
            async with asyncio.timeout(seconds):
                return await output.readline()
        except TimeoutError:
            raise Unavailable(
                f"Preparing the version reported no progress for {seconds:g} s and was killed (setting "
                "build_timeout). Something has stopped its process; see whether its packages do, then create "
                "the version again."
            ) from None

    async def _start_first_node(self, spec: NodeSpec) -> Mapping[str, Any]:
        try:
            async with self._activator.lease(spec, 0, _CreationDeadline(spec.start_timeout)) as lease:
                return lease.node.report
        except StartFailedError as error:
            raise InvalidArgument(error.reason) from error
        except TooLateError as error:
            raise Unavailable(f"No node could be started in time. {error.reason}") from error
        except RetiredError as error:
            raise Cancelled("The version was deleted.") from error


class _CreationDeadline:
    """When a creation gives up: later than a start may take, because memory may not be free."""

    def __init__(self, start_timeout: float) -> None:
        self._deadline = time.monotonic() + start_timeout + _GRACE

    @property
    def remaining(self) -> float:
        return self._deadline - time.monotonic()

    async def wait(self, granted: asyncio.Future[Node]) -> Node:
        async with asyncio.timeout(self.remaining):
            return await granted


def build_scaling_spec(version: Version, config: ServeConfig, cores: int) -> ScalingSpec:
    """The version's own limits, and the server's settings for the rest; `cores` are those of the pool."""
    auto = version.auto_scaling or AutoScaling()
    cpu = next((metric.target for metric in auto.metrics if metric.name == "CPU_USAGE"), 0)
    return ScalingSpec(
        min_nodes=auto.min_nodes,
        max_nodes=max(auto.min_nodes, auto.max_nodes or config.max_nodes or cores),
        exact_nodes=version.manual_scaling.nodes or None if version.manual_scaling else None,
        target_concurrency=config.target_concurrency,
        cpu_target=cpu / 100 or None,
        idle_window=config.idle_timeout,
        stable_window=config.stable_window,
        panic_window=config.panic_window,
        scale_down_delay=config.scale_down_delay,
    )


def has_floor(version: Version) -> bool:
    """Whether a version has nodes without requests."""
    return bool(
        (version.auto_scaling is not None and version.auto_scaling.min_nodes)
        or (version.manual_scaling is not None and version.manual_scaling.nodes)
    )


def list_sources(version: Version) -> list[tuple[str, str]]:
    """The URIs of a version's model and packages, each after the name of its field."""
    packages = (("version.package_uris", uri) for uri in version.package_uris)
    return [("version.deployment_uri", version.deployment_uri), *packages]


def _folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _declared_framework(record: VersionRecord) -> str:
    is_custom = record.version.prediction_class or record.version.container is not None
    return find_user_code_framework().name if is_custom else record.version.framework


def render_create_version_request(record: VersionRecord) -> str:
    """The environment variable that AI Platform gave custom routines. Contract 3.5."""
    version = {
        "name": str(record.name),
        "deployment_uri": record.version.deployment_uri,
        "prediction_class": record.version.prediction_class,
        "package_uris": list(record.version.package_uris),
    }
    return json.dumps({"version": version})
