"""Runs the gateway until it is told to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

from autoscaler import linux
from serving.config import ServeConfig
from serving.errors import FailedPrecondition, Unavailable
from serving.gateway.access.bootstrap import is_access_control_on, open_token_store
from serving.gateway.app import Gateway
from serving.gateway.state.store import SqliteStore
from serving.transport import http_server
from serving.transport.cross_origin import CrossOriginPolicy
from serving.transport.event_loop import run_event_loop
from serving.transport.grpc_startup import bind_grpc_server
from serving.transport.tls import CertificateFiles

logger = logging.getLogger(__name__)


def serve(config: ServeConfig, environment: Mapping[str, str], announce: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    `announce` is called with the server's address once it listens, and with that of gRPC. Raises Unavailable
    when an address is taken, FailedPrecondition when another server uses the state folder or what is in it is
    damaged, and InvalidArgument for a server open to others by mistake or a certificate that does not work.
    """
    certificate = CertificateFiles.from_settings(config.tls_cert, config.tls_key)
    cross_origin = CrossOriginPolicy.from_settings(
        config,
        config.host,
        enforced=not is_access_control_on(config),
        scheme="https" if certificate else "http",
    )
    config = dataclasses.replace(config, state_dir=config.state_dir.expanduser().absolute())
    with (
        _lock_state_dir(config.state_dir),
        contextlib.closing(http_server.listen_tcp(config.host, config.port)) as listener,
    ):
        port = listener.getsockname()[1]
        tokens = open_token_store(config)
        announce(f"{'https' if certificate else 'http'}://{_format_url_host(config.host)}:{port}")

        async def run_server() -> int:
            store = SqliteStore(config.state_dir / "state.db")
            store.load()  # what is damaged is told of before anything has begun

            def stop_server(reason: str) -> None:
                server.stop_with_error(reason)

            gateway = Gateway(
                config,
                store,
                environment,
                tokens=tokens,
                on_death=stop_server,
                refused=lambda: server.rejections,
            )
            grpc = bind_grpc_server(
                config,
                config.host,
                gateway.prediction_handler,
                gateway.create_metadata_service,
                announce,
                certificate=certificate,
                cross_origin=cross_origin,
            )
            if grpc is not None:
                grpc.mark_ready()  # from its start, which is when the gateway has started
            server = http_server.make_http_server(
                gateway,
                settings=config,
                drain=config.request_timeout,
                certificate=certificate,
                handler=gateway.prediction_handler,
                companion=grpc,
                cross_origin=cross_origin,
                on_shortage=gateway.set_accept_trouble,
                stop_timeout=config.stop_timeout,
            )
            await server.serve(sockets=[listener])
            return server.exit_code

        code = run_event_loop(run_server())
        if left := linux.kill_descendants():
            logger.warning("%d processes were killed that models or builds had left behind", left)
        return code


@contextlib.contextmanager
def _lock_state_dir(folder: Path) -> Generator[None]:
    """Hold the state folder; the kernel lets go of it however the process ends.

    The file `lock` says who holds it. It may be removed, so the folder itself is locked too if it can be.
    """
    with contextlib.ExitStack() as held:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _restrict_permissions(folder)
            file = held.enter_context((folder / "lock").open("a+b", buffering=0))
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
        except OSError as error:
            raise _state_dir_error(folder, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_folder(descriptor)
        except OSError:
            file.seek(0)
            raise FailedPrecondition(
                f"Another server (pid {file.read().decode() or 'unknown'}) uses the state folder {folder}. "
                "Stop it, or choose another --state-dir."
            ) from None
        try:
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        except OSError as error:
            raise _state_dir_error(folder, error) from error
        yield


def _lock_folder(descriptor: int) -> None:
    """Raises BlockingIOError if another server has done so; NFS has no locks on folders."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        logger.debug("the state folder cannot be locked itself: %s", error)


def _state_dir_error(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(f"Cannot use the state folder {folder}: {error.strerror}.")


def _restrict_permissions(folder: Path) -> None:
    """Nobody else reads what the server remembers. Folders open to others may have to be, for logs."""
    descriptor = os.open(folder / "state.db", os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    if folder.stat().st_mode & 0o077:
        logger.warning("other users may read the state folder %s; close it to them: chmod 700", folder)


def _format_url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
