"""Beam's runner and options for a job: the embedded runner by default, remote ones by name."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import joblib
from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    FlinkRunnerOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
    SetupOptions,
    SparkRunnerOptions,
    WorkerOptions,
)
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc
from apache_beam.runners.portability.flink_runner import MAGIC_HOST_NAMES
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.portability.spark_runner import LOCAL_MASTER_PATTERN
from apache_beam.runners.runner import create_runner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from batch import boot
from batch.engines.engine import Engine, OpaqueEngine, PipelineName
from batch.engines.flink import FlinkEngine
from batch.engines.spark import SparkEngine, find_web_addresses
from batch.messages import EMBEDDED
from batch.worker_signs import format_signs_folder
from serving.errors import FailedPrecondition, InvalidArgument

WORKER_MODULE = "batch.beam.worker"
# Runners on other machines.
REMOTE_RUNNERS = ("FlinkRunner", "SparkRunner", "DataflowRunner", "PrismRunner", "PortableRunner")

# Seconds within which a job server must answer.
_ANSWER_WITHIN = 20.0
# Beam ends its calls to a job server after this time, also the one that waits for the pipeline's end.
_CALL_SECONDS = 30 * 24 * 3600
# The least similarity of a misspelt option to the right one.
_SIMILARITY = 0.85
# Environments in which our own boot may start the workers.
_OWN_BOOT = ("EXTERNAL", "PROCESS")
# Dataflow makes machines for them.
_DATAFLOW_START_SECONDS = 600.0
# Options that would make the job anything else than one run of this pipeline, found by its name.
_RESERVED_OPTIONS = (
    "job_name",
    "output_executable_path",
    "runner",
    "save_main_session",
    "streaming",
    "template_location",
    "update",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRequest:
    """The runner that a job wants: its name, its options as typed, and what their defaults are made from.

    `job` is the job's name, `uid` tells it from all others, `workers` is the most it may have, `region` is ""
    by default. `folder` is for the attempt's temporary files, `paths` is what workers read and write.
    """

    runner: str
    arguments: tuple[str, ...] = ()
    job: str
    uid: str
    attempt: int = 1
    workers: int
    region: str = ""
    folder: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoteRunner:
    """A runner on other machines, and the engine that it hands pipelines to.

    `in_process`: its workers are threads of this process after all. `bare_workers`: they have nothing but
    Beam, so that the rest must be installed.
    """

    name: str
    runner: Any
    engine: Engine
    options: PipelineOptions
    in_process: bool
    bare_workers: bool

    def add_packages(self, packages: Sequence[str]) -> None:
        """Have the workers install these archives before any that the options name."""
        setup = self.options.view_as(SetupOptions)
        setup.extra_packages = [*packages, *(setup.extra_packages or ())]


def count_cores() -> int:
    found: int = joblib.cpu_count()
    return found


def create_embedded_runner(workers: int, progress_folder: str) -> tuple[Any, PipelineOptions]:
    """Beam's own runner on this machine: one worker in this process, or several in processes of their own,
    which write their progress to `progress_folder`.

    By its class: DirectRunner may choose another runner, which it has to download.
    """
    options = PipelineOptions([])
    if workers == 1:
        return FnApiRunner(), options
    options.view_as(DirectOptions).direct_num_workers = workers
    command = f"exec {shlex.quote(sys.executable)} -m {WORKER_MODULE} {shlex.quote(progress_folder)}"
    return FnApiRunner(SubprocessSDKEnvironment.from_command_string(command)), options


def create_remote_runner(request: RunnerRequest) -> RemoteRunner:
    """Raises InvalidArgument for an unknown runner or option, FailedPrecondition when something is missing
    that the runner needs.
    """
    if request.runner not in REMOTE_RUNNERS:
        raise InvalidArgument(
            f"Unknown runner {request.runner!r}; known: {EMBEDDED} (on this machine), "
            f"{', '.join(REMOTE_RUNNERS)}."
        )
    given = _parse_options(request.arguments)
    _check_reserved(given)
    here = _runs_in_process(request.runner, given)
    engine = _choose_engine(request, given)
    # The last of two equal options wins.
    options = _parse_options([*default_options(request, engine, here=here), *request.arguments])
    _check_options(request.runner, options)
    if options.view_as(PortableOptions).environment_type in _OWN_BOOT:
        experiment = boot.format_experiment(format_signs_folder(request.folder))
        options.view_as(DebugOptions).add_experiment(experiment)
    found = RemoteRunner(
        request.runner,
        _create_runner(request.runner, options),
        engine,
        options,
        here,
        _has_bare_workers(options, here=here),
    )
    _check_paths(request, found)
    return found


def find_engine(request: RunnerRequest) -> Engine:
    """The engine of a job whose pipeline may be running. Raises InvalidArgument."""
    return _choose_engine(request, _parse_options(request.arguments))


def default_options(request: RunnerRequest, engine: Engine, *, here: bool) -> list[str]:
    """Options that follow from the job, for a runner whose workers are in this process (`here`) or not."""
    # The previous attempt may still be running.
    name = PipelineName.of_job(request.job, request.uid).format_attempt(request.attempt)
    found = [f"--job_name={name}", f"--job_server_timeout={_CALL_SECONDS}"]
    match request.runner:
        case "FlinkRunner" | "PortableRunner":
            workers = min(request.workers, count_cores()) if here else request.workers
            found.append(f"--parallelism={engine.limit_workers(workers)}")
        case "DataflowRunner":
            found += [f"--max_num_workers={request.workers}", f"--temp_location={request.folder}/beam"]
            if request.region:
                found.append(f"--region={request.region}")
    return found


# ---- options


class SparkMasterOptions(PipelineOptions):
    """An option of ours, which Beam's parser finds by its base class."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--spark_master_webui",
            help="HOST:PORT of the web UI of Spark's master; by default port 8080 of --spark_master_url. "
            "Several masters are separated by commas.",
        )


def _parse_options(arguments: Sequence[str]) -> PipelineOptions:
    for before, word in zip(("=", *arguments), arguments, strict=False):
        if not word.startswith("--") and (not before.startswith("--") or "=" in before):
            raise InvalidArgument(f"{word!r} is not a pipeline option; they are written --NAME=VALUE.")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = PipelineOptions(list(arguments))
            options.get_all_options()
    except (SystemExit, ValueError) as error:
        # Beam's parser prints its usage and the error, and exits.
        reason = said.getvalue().rpartition("error: argument ")[2].strip() or error
        raise InvalidArgument(f"A pipeline option is wrong: {reason}.") from None
    return options


def _check_reserved(given: PipelineOptions) -> None:
    values = given.get_all_options()
    for name in _RESERVED_OPTIONS:
        if values[name]:
            raise InvalidArgument(f"--{name} cannot be set for a batch prediction.")


def _check_options(runner: str, options: PipelineOptions) -> None:
    _check_environment_config(options.view_as(PortableOptions).environment_config)
    known = options.get_all_options()
    unknown = options.get_all_options(retain_unknown_options=True).keys() - known.keys()
    endpoint = options.view_as(PortableOptions).job_endpoint
    is_asked = bool(endpoint) and endpoint != "embed"
    if is_asked:
        unknown -= _fetch_server_options(endpoint)
    for name in sorted(unknown):
        near = difflib.get_close_matches(name, known, 1, _SIMILARITY)
        # A job server that is not started yet may know more options than Beam's Python SDK.
        if near or is_asked or runner == "DataflowRunner":
            meant = f" Did you mean --{near[0]}?" if near else ""
            raise InvalidArgument(f"{runner} has no option --{name}.{meant}")


def _check_environment_config(config: str | None) -> None:
    if config is None or not config.startswith("{"):
        return
    try:
        json.loads(config)
    except ValueError as error:
        raise InvalidArgument(
            f"--environment_config is no JSON: {error}. Put single quotes around it, which keep its own."
        ) from None


def _fetch_server_options(endpoint: str) -> set[str]:
    with grpc.insecure_channel(endpoint) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_ANSWER_WITHIN)
            answer = beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=_ANSWER_WITHIN
            )
        except (grpc.FutureTimeoutError, grpc.RpcError) as error:
            raise FailedPrecondition(
                f"No Beam job server answers at {endpoint}. Start it, or correct --job_endpoint=HOST:PORT."
            ) from error
    return {option.name for option in answer.options}


def _choose_engine(request: RunnerRequest, options: PipelineOptions) -> Engine:
    master = options.view_as(FlinkRunnerOptions).flink_master.strip()
    if request.runner in ("FlinkRunner", "PortableRunner") and master not in MAGIC_HOST_NAMES:
        return FlinkEngine(master, PipelineName.of_job(request.job, request.uid), request.attempt)
    if request.runner == "DataflowRunner":
        return OpaqueEngine(request.runner, _DATAFLOW_START_SECONDS)
    if request.runner == "SparkRunner":
        return _create_spark_engine(request, options)
    return OpaqueEngine(request.runner)


def _create_spark_engine(request: RunnerRequest, options: PipelineOptions) -> SparkEngine:
    named = options.view_as(SparkMasterOptions).spark_master_webui
    addresses = find_web_addresses(options.view_as(SparkRunnerOptions).spark_master_url, named)
    name = PipelineName.of_job(request.job, request.uid)
    return SparkEngine(addresses, name, request.attempt, is_named=bool(named))


def _runs_in_process(runner: str, options: PipelineOptions) -> bool:
    """Whether the workers are threads of this process: Beam's default where it starts the cluster itself."""
    kind = options.view_as(PortableOptions).environment_type
    if kind or runner == "DataflowRunner":
        return bool(kind == "LOOPBACK")
    match runner:
        case "PrismRunner":
            return True
        case "FlinkRunner":
            return options.view_as(FlinkRunnerOptions).flink_master in MAGIC_HOST_NAMES
        case "SparkRunner":
            master = options.view_as(SparkRunnerOptions).spark_master_url
            return re.match(LOCAL_MASTER_PATTERN, master) is not None
        case _:
            return False


def _has_bare_workers(options: PipelineOptions, *, here: bool) -> bool:
    """Whether workers run in Beam's own container, and no option installs anything there."""
    portable, setup = options.view_as(PortableOptions), options.view_as(SetupOptions)
    return not (
        here
        or portable.environment_type not in (None, "DOCKER")
        or portable.environment_config
        or portable.environment_options
        or setup.setup_file
        or setup.requirements_file
        or options.view_as(WorkerOptions).sdk_container_image
    )


# ---- what a runner needs


def _create_runner(runner: str, options: PipelineOptions) -> Any:
    endpoint = options.view_as(PortableOptions).job_endpoint
    if runner == "PortableRunner" and not endpoint:
        raise InvalidArgument(
            "PortableRunner needs --job_endpoint=HOST:PORT, the address of a Beam job server."
        )
    java = options.view_as(JobServerOptions).job_server_java_launcher
    if not endpoint and _starts_java(runner, options) and shutil.which(java) is None:
        raise FailedPrecondition(
            f"{runner} starts a Beam job server, which needs Java, and there is no {java!r} here. Install "
            "Java 11 or later, or name a job server that is running with --job_endpoint=HOST:PORT."
        )
    try:
        return create_runner(runner)
    except ImportError as error:
        raise FailedPrecondition(f"{runner} is not installed here: {error}.") from error


def _starts_java(runner: str, options: PipelineOptions) -> bool:
    """Whether Beam starts a job server in Java here; instead, it may send a jar to the cluster."""
    match runner:
        case "FlinkRunner":
            flink = options.view_as(FlinkRunnerOptions)
            return not flink.flink_submit_uber_jar or flink.flink_master in MAGIC_HOST_NAMES
        case "SparkRunner":
            return not options.view_as(SparkRunnerOptions).spark_submit_uber_jar
        case _:
            return False


def _check_paths(request: RunnerRequest, found: RemoteRunner) -> None:
    for path in request.paths:
        if found.bare_workers and not path.startswith("gs://"):
            raise FailedPrecondition(
                f"The workers of {request.runner} run in containers, where there is no {path}. Use gs:// for "
                "the model, the input and the output, or give the workers an environment that has it with "
                "--environment_type or --sdk_container_image."
            )
