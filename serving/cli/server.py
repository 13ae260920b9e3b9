"""`pilotlight serve` and `pilotlight node`."""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from serving import http
from serving.cli.output import complain
from serving.cli.settings import with_settings
from serving.config import NodeConfig, ServeConfig, prepare_frameworks, process_environment
from serving.errors import InvalidArgument
from serving.runtimes import Source

# Imports of programs stand inside the commands: each loads only what it runs.


@with_settings(ServeConfig)
def serve(config: ServeConfig) -> int:
    """Run the server: control API, predictions, nodes. State is kept in one folder.

    Every setting can also come from PILOTLIGHT_<NAME> in the environment or from --config.
    """
    from serving.gateway.main import serve as run  # noqa: PLC0415

    _log()
    return run(config, process_environment(), lambda address: print(f"Listening on {address}", flush=True))


@with_settings(NodeConfig)
def node(config: NodeConfig) -> int:
    """Serve one model directory without a gateway, at the lowest latency.

    Answers POST /v1/projects/P/models/M[/versions/V]:predict and /v1/models/M:predict for any P, M, V.
    """
    from serving.node.main import serve as run  # noqa: PLC0415

    _log()
    prepare_frameworks()
    if not config.model_dir and not config.prediction_class:
        raise InvalidArgument("Say what to serve: --model-dir gs://BUCKET/PATH or --model-dir PATH.")
    workplace = Path(tempfile.mkdtemp(prefix="pilotlight-node-"))
    try:
        source = _prepare(config, workplace)
        listener = _listen(config)
        return http.run(
            run(
                source,
                config,
                listener,
                on_ready=lambda report: print(
                    f"Ready on {_address(listener)}: {report.framework}", flush=True
                ),
                on_failed=lambda error: complain(error.message),
            )
        )
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _prepare(config: NodeConfig, workplace: Path) -> Source:
    """The model's files on disk; a local folder without packages is served from where it is."""
    packages = tuple(uri for uri in config.package_uris.split(",") if uri)
    framework = "CUSTOM" if config.prediction_class else config.framework.upper().replace("-", "_")
    if "://" not in config.model_dir and not packages:
        return Source(Path(config.model_dir), framework, config.prediction_class, (), config.threads)
    from serving.prepare import Request, prepare  # noqa: PLC0415

    request = Request(
        deployment_uri=config.model_dir,
        package_uris=packages,
        destination=str(workplace / "version"),
        cache_dir=str(config.cache_dir.expanduser()),
        cache_bytes=config.cache_bytes,
    )
    prepared = prepare(request, lambda phase: print(f"{phase.capitalize()} ...", flush=True))
    folders = tuple(Path(folder) for folder in prepared.packages)
    return Source(Path(prepared.model_dir), framework, config.prediction_class, folders, config.threads)


def _listen(config: NodeConfig) -> socket.socket:
    if not config.uds:
        return http.listen_tcp(config.host, config.port)
    return http.listen_unix(Path(config.uds))


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else "http://{}:{}".format(*name)


def _log() -> None:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
