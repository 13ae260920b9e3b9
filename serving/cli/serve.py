"""`pilotlight serve` and `pilotlight node`."""

from __future__ import annotations

import gc
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.cli.console import print_error
from serving.cli.model_source import prepare_model
from serving.config import (
    LoadedSettings,
    NodeConfig,
    ServeConfig,
    environment_without_settings,
    flag_of_setting,
    load_node_config,
    set_framework_environment,
)
from serving.container_platform import MODEL_MOUNT
from serving.errors import InvalidArgument
from serving.logs import formatters

if TYPE_CHECKING:
    from serving.node.acceleration_controller import AccelerationController
    from serving.runtimes import LoadSpec

# Programs are imported inside the commands: each loads only what it runs.


def serve(settings: LoadedSettings[ServeConfig]) -> int:
    """Run the server: control API, predictions, nodes. State is kept in one folder.

    Every setting can also come from PILOTLIGHT_<NAME> in the environment or from --config.

    Example: pilotlight serve --port 8080 --state-dir ~/pilotlight
    """
    gc.disable()  # faster imports; the gateway enables the collector once it is ready
    try:
        from serving.gateway.main import serve as serve_gateway  # noqa: PLC0415

        formatters.configure_logging(settings.values.log_format)
        return serve_gateway(
            settings,
            environment_without_settings(),
            lambda address: print(f"Listening on {address}", flush=True),
        )
    finally:
        gc.enable()


def load_node_settings(given: Mapping[str, Any], file: Path | None) -> NodeConfig:
    """The settings of `node`, those of the container's platform included; the platform's are printed."""
    settings, contract = load_node_config(given, file)
    if requested := ", ".join(
        f"{flag_of_setting(name)} {value}" for name, (_, value) in contract.settings.items()
    ):
        print(f"As the container's platform asks for ({contract}): {requested}", flush=True)
    return settings


def node(config: NodeConfig) -> int:
    """Serve one model directory without a gateway, at the lowest latency.

    Answers POST /v1/projects/P/models/M[/versions/V]:predict and /v1/models/M:predict for any P, M, V. In a
    container, AIP_HTTP_PORT, AIP_HEALTH_ROUTE, AIP_PREDICT_ROUTE, AIP_STORAGE_URI, PORT and /mnt/models say
    what no flag does, and it listens on 0.0.0.0.

    Example: pilotlight node --model-dir gs://my-bucket/flowers --port 8080
    """
    set_framework_environment()
    from serving.node.standalone.server import serve_standalone  # noqa: PLC0415
    from serving.transport.cross_origin import CrossOriginPolicy  # noqa: PLC0415
    from serving.transport.event_loop import run_event_loop  # noqa: PLC0415

    formatters.configure_logging(formatters.TEXT)
    if not config.model_dir and not config.prediction_class:
        raise InvalidArgument(
            "Say what to serve: --model-dir gs://BUCKET/PATH or --model-dir PATH; in a container, "
            f"AIP_STORAGE_URI or a model in {MODEL_MOUNT}."
        )
    cross_origin = CrossOriginPolicy.from_settings(config, None if config.uds else config.host, enforced=True)
    with prepare_model(config, lambda phase: print(phase, flush=True)) as source:
        acceleration = _create_acceleration(config, source)
        if acceleration is not None:
            acceleration.start_verification()
        listener = _open_listener(config)
        return run_event_loop(
            serve_standalone(
                source,
                config,
                listener,
                cross_origin=cross_origin,
                acceleration=acceleration,
                announce=lambda address: print(f"Listening on {address}", flush=True),
                on_ready=lambda report: print(
                    f"Ready on {_format_address(listener)}: {report.framework}", flush=True
                ),
                on_failed=lambda error: print_error(error.message),
            )
        )


def _create_acceleration(config: NodeConfig, source: LoadSpec) -> AccelerationController | None:
    """None where acceleration is off or does not apply; its record is kept in the cache."""
    from serving.node.acceleration_controller import AccelerationController, allocate_record_location  # noqa: PLC0415

    if config.acceleration == "off" or source.external is not None:
        return None
    if source.method not in ("", "predict"):  # the fast paths are those of predict
        return None
    prepared = Path(config.prepared_dir) if config.prepared_dir else None
    return AccelerationController(
        source, lambda: allocate_record_location(config.cache_dir.expanduser(), source.model_dir, prepared)
    )


def _open_listener(config: NodeConfig) -> socket.socket:
    from serving.transport import http_server  # noqa: PLC0415

    if not config.uds:
        return http_server.listen_tcp(config.host, config.port)
    return http_server.listen_unix(Path(config.uds))


def _format_address(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else "http://{}:{}".format(*name)
