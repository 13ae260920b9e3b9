"""Prepares the files of a model on this machine, without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from serving.config import NodeConfig
from serving.frameworks import find_user_code_framework, list_selectable
from serving.predictor.interpreters import resolve_interpreter_path
from serving.scratch_folders import scratch_folder, sweep_scratch

if TYPE_CHECKING:
    from serving.runtimes import ExternalInterpreter, LoadSpec

MessageCallback = Callable[[str], None]


@contextmanager
def prepare_model(config: NodeConfig, on_message: MessageCallback) -> Iterator[LoadSpec]:
    """The model's files on disk while the context is open; `on_message` gets phases and warnings.

    A local folder without packages is used where it is.
    """
    sweep_scratch()
    with scratch_folder("node") as workplace:
        yield _prepare_source(config, workplace, on_message)


def _prepare_source(config: NodeConfig, workplace: Path, on_message: MessageCallback) -> LoadSpec:
    from serving.runtimes import LoadSpec  # noqa: PLC0415  start-up time of the other commands

    interpreter = resolve_interpreter_path(config.interpreter) if config.interpreter else ""
    packages = tuple(uri for uri in config.package_uris.split(",") if uri)
    framework = _find_framework_name(config)
    if "://" not in config.model_dir and not packages:
        return LoadSpec(
            Path(config.model_dir),
            framework,
            config.prediction_class,
            threads=config.threads,
            external=_create_external_interpreter(interpreter),
            method=config.prediction_method,
        )
    from serving.artifacts.prepare import PreparationRequest, prepare_version  # noqa: PLC0415

    request = PreparationRequest(
        deployment_uri=config.model_dir,
        package_uris=packages,
        destination=str(workplace / "version"),
        cache_dir=str(config.cache_dir.expanduser()),
        cache_bytes=config.cache_bytes,
        interpreter=interpreter,
    )
    ready = prepare_version(request, lambda phase: on_message(f"{phase.capitalize()} ..."))
    for warning in ready.warnings:
        on_message(f"WARNING: {warning}")
    folders = tuple(Path(folder) for folder in ready.packages)
    return LoadSpec(
        Path(ready.model_dir),
        framework,
        config.prediction_class,
        folders,
        config.threads,
        _create_external_interpreter(ready.interpreter),
        method=config.prediction_method,
    )


def _find_framework_name(config: NodeConfig) -> str:
    """The empty text where it is to be detected."""
    if config.prediction_class:
        return find_user_code_framework().name
    return next((one.name for one in list_selectable() if one.option == config.framework), "")


def _create_external_interpreter(interpreter: str) -> ExternalInterpreter | None:
    from serving.runtimes import ExternalInterpreter  # noqa: PLC0415

    return ExternalInterpreter(interpreter, shared_fate=True) if interpreter else None
