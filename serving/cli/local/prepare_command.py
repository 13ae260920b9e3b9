"""`pilotlight prepare`: verifies a model before a standalone node serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.cli.model_source import prepare_model
from serving.config import NodeConfig, load_node_config, set_framework_environment
from serving.errors import InvalidArgument, LoadFailed
from serving.logs import formatters

if TYPE_CHECKING:
    from serving.acceleration_record import AccelerationRecord

_FOR_ALL = 0o644
# The flags that are settings of the node too, with their help.
_MODEL_DIR = typer.Option(help="The model directory (setting model_dir).", show_default=False)
_FRAMEWORK = typer.Option(help="The model's framework (setting framework).", show_default=False)
_THREADS = typer.Option(help="Threads of one call (setting threads).", show_default=False)
_CACHE_DIR = typer.Option(help="Where fetched files are kept (setting cache_dir).", show_default=False)
_OUTPUT = typer.Option(
    help="The folder to write to; .pilotlight in the model's folder when left out.", show_default=False
)


def prepare(
    *,
    model_dir: Annotated[str | None, _MODEL_DIR] = None,
    framework: Annotated[str | None, _FRAMEWORK] = None,
    threads: Annotated[int | None, _THREADS] = None,
    cache_dir: Annotated[Path | None, _CACHE_DIR] = None,
    output: Annotated[Path | None, _OUTPUT] = None,
) -> None:
    """Verify the fast computations of a model now, so that a node uses them from its first request on.

    Writes a small record beside the model, or to --output, where a node finds it with --prepared-dir. It is
    valid for these model files, versions of libraries and code, and this kind of processor; elsewhere it is
    ignored. The model's code runs here, as in a node. What no flag says is read as pilotlight node reads it.

    Example: pilotlight prepare --model-dir ./flowers
    """
    given: dict[str, Any] = {
        "model_dir": model_dir,
        "framework": framework,
        "threads": threads,
        "cache_dir": cache_dir,
    }
    settings, _ = load_node_config(given)
    formatters.configure_logging(formatters.TEXT)
    set_framework_environment()
    if not settings.model_dir:
        raise InvalidArgument("Say what to prepare: --model-dir gs://BUCKET/PATH or --model-dir PATH.")
    folder = output or _choose_output(settings)
    with prepare_model(settings, lambda phase: print(phase, flush=True)) as source:
        from serving.node import preparation  # noqa: PLC0415  start-up time of the other commands

        if reason := preparation.find_obstacle(source):
            print(f"Nothing to prepare: {reason}")
            return
        record = preparation.prepare_record(source)
    if record.failure:
        raise LoadFailed(record.failure)
    try:
        _write(record, folder)
    except OSError as error:
        raise InvalidArgument(f"Cannot write to {folder}: {error.strerror}. Say where: --output.") from error
    for line in _describe_record(record):
        print(line)
    print(f"Written to {folder}")


def _write(record: AccelerationRecord, folder: Path) -> None:
    from serving.acceleration_record import RECORD_FILE, write_record  # noqa: PLC0415

    write_record(folder, record)
    (folder / RECORD_FILE).chmod(_FOR_ALL)  # a node may run as another user


def _choose_output(settings: NodeConfig) -> Path:
    from serving.acceleration_record import PREPARED_FOLDER  # noqa: PLC0415

    if settings.prepared_dir:
        return Path(settings.prepared_dir)
    if "://" in settings.model_dir:
        raise InvalidArgument(
            "Say where to write: --output FOLDER. Copied from there to "
            f"{settings.model_dir.rstrip('/')}/{PREPARED_FOLDER}/, a node finds it."
        )
    return Path(settings.model_dir) / PREPARED_FOLDER


def _describe_record(record: AccelerationRecord) -> Iterator[str]:
    for one in record.ranges:
        yield (
            f"from {one.rows} rows: {one.way}, {one.seconds * 1e3:.3f} ms, "
            f"the library {one.plain_seconds * 1e3:.3f} ms"
        )
    if record.batching is not None:
        yield f"dynamic batching: {'on' if record.batching.merge else 'off'} ({record.batching.reason})"
