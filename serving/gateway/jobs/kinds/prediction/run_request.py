"""Builds the request that a job's process is started with."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from batch.messages import JobRequest, ModelSource
from serving.artifacts.local_folder_policy import LocalFolderPolicy
from serving.config import ServeConfig
from serving.errors import InvalidArgument
from serving.gateway.catalog.job_checks.prediction_checks import UNSPECIFIED_FORMAT, is_runner_name
from serving.gateway.control.deployment import render_create_version_request
from serving.gateway.state.records import DeploymentInfo, JobRecord, VersionRecord
from serving.predictor import interpreters
from serving.predictor.interpreters import InterpreterRegistry
from serving.resources import BatchOptions, PredictionInput

# AI Platform's default.
_DEFAULT_WORKERS = 10


@dataclass(frozen=True, slots=True)
class JobDefaults:
    """Settings of the server that apply to every job."""

    runner: str
    options: tuple[str, ...]
    cache_dir: Path
    cache_bytes: int
    folders: LocalFolderPolicy
    interpreters: InterpreterRegistry
    single_output: str
    long_decimals: bool

    @classmethod
    def from_config(cls, config: ServeConfig) -> JobDefaults:
        """Raises InvalidArgument."""
        if not is_runner_name(config.batch_runner):
            raise InvalidArgument(
                f"batch_runner {config.batch_runner!r} is no Beam runner; name it like FnApiRunner or "
                "FlinkRunner."
            )
        try:
            options = tuple(shlex.split(config.batch_options))
        except ValueError as error:
            raise InvalidArgument(f"batch_options cannot be split into options: {error}.") from error
        folders = LocalFolderPolicy.from_setting(
            config.local_folders, config.state_dir, config.shared_versions_uri
        )
        return cls(
            config.batch_runner,
            options,
            config.state_dir / "cache",
            config.cache_bytes,
            folders,
            InterpreterRegistry(interpreters.parse_interpreters(config.runtime), config.state_dir),
            config.single_output,
            config.long_decimals,
        )


def build_run_request(
    record: JobRecord,
    version: VersionRecord | None,
    folder: Path,
    defaults: JobDefaults,
    *,
    clean: bool = False,
) -> JobRequest:
    """Build the request of an attempt or, with `clean`, of the removal of what attempts have left behind."""
    given = record.job.prediction_input or PredictionInput()
    options = record.job.batch_options or BatchOptions()
    runner = options.runner or defaults.runner
    deployed = (version and version.deployed) or DeploymentInfo(model_dir="")
    # The server's options are those of its runner.
    inherited = defaults.options if runner == defaults.runner else ()
    return JobRequest(
        job=record.name,
        uid=record.uid,
        attempt=record.attempt,
        model=_model_source(given, version, defaults.interpreters),
        input_paths=given.input_paths,
        output_path=given.output_path,
        data_format=given.data_format,
        output_format="JSON"
        if given.output_data_format in ("", UNSPECIFIED_FORMAT, "TEXT")
        else given.output_data_format,
        batch_size=int(given.batch_size or 0),
        max_workers=int(given.max_worker_count or _DEFAULT_WORKERS),
        signature_name=given.signature_name,
        keys=options.keys,
        max_errors=options.max_errors,
        region=given.region,
        runner=runner,
        # Beam takes the last of two values of an option; a job can set its capacity only.
        pipeline_options=(*inherited, *options.pipeline_options),
        scratch_dir=str(folder),
        cache_dir=str(defaults.cache_dir),
        cache_bytes=defaults.cache_bytes,
        allowed_folders=defaults.folders.allowed,
        refused_folders=defaults.folders.refused,
        bare=deployed.answers_bare_output(defaults.single_output),
        long_decimals=defaults.long_decimals,
        clean=clean,
    )


def _model_source(
    given: PredictionInput, version: VersionRecord | None, interpreters: InterpreterRegistry
) -> ModelSource:
    if version is None or version.deployed is None:
        return ModelSource(uri=given.uri, interpreter=interpreters.find_interpreter(given.runtime_version))
    return ModelSource(
        model_dir=version.deployed.model_dir,
        uri=version.version.deployment_uri,
        framework=version.deployed.framework,
        prediction_class=version.version.prediction_class,
        method=version.version.prediction_method,
        packages=version.deployed.packages,
        package_uris=version.version.package_uris,
        environment={"create_version_request": render_create_version_request(version)},
        interpreter=version.deployed.interpreter,
    )
