"""Runs the gateway process: state folder lock, listeners, event loop."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from autoscaler import linux
from serving.config import LoadedSettings, ServeConfig
from serving.errors import FailedPrecondition, InvalidArgument, Unavailable
from serving.gateway.access.bootstrap import is_access_control_on, open_token_store
from serving.gateway.app import Gateway
from serving.gateway.state.state_home import STATE_FILE, DatabaseHome, check_home, write_home
from serving.gateway.state.store import SqliteStore, StateStore
from serving.transport import http_server
from serving.transport.cross_origin import CrossOriginPolicy
from serving.transport.event_loop import keep_freed_memory, run_event_loop
from serving.transport.grpc_startup import bind_grpc_server
from serving.transport.tls import CertificateFiles

if TYPE_CHECKING:
    from serving.gateway.state_sharing import StateSharing

logger = logging.getLogger(__name__)


def serve(
    settings: LoadedSettings[ServeConfig], environment: Mapping[str, str], announce: Callable[[str], None]
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    `announce` is called with each address that the server listens on, HTTP and gRPC. Raises Unavailable if an
    address is taken, FailedPrecondition if another server uses the state folder or the state is damaged,
    InvalidArgument if the server would be open to others without access control, or for a bad certificate.
    """
    config = settings.values
    certificate = CertificateFiles.from_settings(config.tls_cert, config.tls_key)
    cross_origin = CrossOriginPolicy.from_settings(
        config,
        config.host,
        enforced=not is_access_control_on(config),
        scheme="https" if certificate else "http",
    )
    config = dataclasses.replace(config, state_dir=config.state_dir.expanduser().absolute())
    with (
        _lock_state_dir(config.state_dir, has_state_file=not config.state),
        contextlib.closing(http_server.listen_tcp(config.host, config.port)) as listener,
    ):
        port = listener.getsockname()[1]
        store, sharing = _open_state(config)
        tokens = open_token_store(config)
        announce(f"{'https' if certificate else 'http'}://{_format_url_host(config.host)}:{port}")

        async def run_server() -> int:
            store.load()  # fail on a damaged state before anything starts

            def stop_server(reason: str) -> None:
                server.stop_with_error(reason)

            gateway = Gateway(
                config,
                store,
                environment,
                tokens=tokens,
                on_death=stop_server,
                setting_sources=settings.sources,
                refused=lambda: server.rejections,
                sharing=sharing,
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
                grpc.mark_ready()  # the gateway has started when gRPC starts
            server = http_server.make_http_server(
                gateway,
                settings=config,
                drain=config.request_timeout,
                certificate=certificate,
                handler=gateway.prediction_handler,
                companion=grpc,
                cross_origin=cross_origin,
                on_shortage=gateway.set_accept_trouble,
                on_stop_delay=gateway.announce_stop,
                on_stopping=gateway.end_streams,
                stop_delay=config.stop_delay,
                stop_timeout=config.stop_timeout,
            )
            await server.serve(sockets=[listener])
            return server.exit_code

        keep_freed_memory()
        code = run_event_loop(run_server())
        if killed := linux.kill_descendants():
            logger.warning("%d processes were killed that models or builds had left behind", killed)
        return code


def _open_state(config: ServeConfig) -> tuple[StateStore, StateSharing | None]:
    """Open the state file or, if the settings name one, the database.

    Raises FailedPrecondition if the files of the state folder belong to another state, and what the stores
    raise.
    """
    folder = config.state_dir
    if not config.state:
        if config.shared_versions_uri:
            raise InvalidArgument(
                "shared_versions_uri is for several servers on one database: name that too (setting state), "
                "or leave it out."
            )
        if config.scaled_deployment:
            raise InvalidArgument(
                "scaled_deployment is for several servers on one database: name that too (setting state), or "
                "leave it out."
            )
        check_home(folder, None)
        return SqliteStore(folder / STATE_FILE), None
    # Not imported where it is not asked for.
    from serving.gateway.state.shared.postgres_store import PostgresStore  # noqa: PLC0415
    from serving.gateway.state_sharing import StateSharing  # noqa: PLC0415

    store = PostgresStore(config.state)
    home = DatabaseHome(store.id, store.address)
    try:
        check_home(folder, home)
        write_home(folder, home)
    except OSError as error:
        store.close()
        raise _state_dir_error(folder, error) from error
    except BaseException:
        store.close()
        raise
    return store, StateSharing(store)


@contextlib.contextmanager
def _lock_state_dir(folder: Path, *, has_state_file: bool = True) -> Generator[None]:
    """Lock the state folder; the kernel releases the lock however the process ends.

    The file `lock` holds the pid of its owner. It may be removed, so the folder is locked too if possible.
    """
    with contextlib.ExitStack() as closing:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _restrict_permissions(folder, has_state_file=has_state_file)
            file = closing.enter_context((folder / "lock").open("a+b", buffering=0))
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            closing.callback(os.close, descriptor)
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
    """Raises BlockingIOError if another server holds the lock. NFS has no locks on folders."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        logger.debug("the state folder cannot be locked itself: %s", error)


def _state_dir_error(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(f"Cannot use the state folder {folder}: {error.strerror}.")


def _restrict_permissions(folder: Path, *, has_state_file: bool) -> None:
    """Close the state file to other users. Their access to the folder is only warned of: logs may need it."""
    if has_state_file:
        descriptor = os.open(folder / STATE_FILE, os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    if folder.stat().st_mode & 0o077:
        logger.warning("other users may read the state folder %s; close it to them: chmod 700", folder)


def _format_url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
