"""Decides whether access control is on; creates the admin token at the first start."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path

from serving.config import ServeConfig, is_loopback
from serving.errors import InvalidArgument, Unavailable
from serving.gateway.access.policy import ADMIN
from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import TokenRecord, mint_token
from serving.gateway.audit import audit_log
from serving.gateway.state.state_home import STATE_FILE

logger = logging.getLogger(__name__)

_TOKEN_FILE = "admin-token"  # noqa: S105  a file's name


def is_access_control_on(config: ServeConfig) -> bool:
    """Raises InvalidArgument for a server that is open to others by mistake."""
    if config.access == "off" and not is_loopback(config.host) and not config.insecure:
        raise InvalidArgument(
            f"With access = off, whoever reaches {config.host} can run code on this machine: it is no "
            "loopback address (setting host). Leave --access out, or say --insecure too."
        )
    return config.access == "on" or (config.access == "auto" and not is_loopback(config.host))


def open_token_store(config: ServeConfig) -> TokenStore | None:
    """Open the tokens of a server with access control, and create the admin's if none is valid.

    Returns None where access control is off. Blocks. Raises what TokenStore does, and Unavailable when the
    admin's token cannot be written.
    """
    if not is_access_control_on(config):
        if not is_loopback(config.host):
            logger.warning(
                "ACCESS CONTROL IS OFF (setting insecure): whoever reaches %s can run code on this machine.",
                config.host,
            )
        return None
    if not is_loopback(config.host) and not config.tls_cert:
        logger.warning(
            "Tokens travel unencrypted: set --tls-cert and --tls-key, or put a TLS proxy in front of %s.",
            config.host,
        )
    store = TokenStore(config.state or config.state_dir / STATE_FILE)
    try:
        now = time.time()
        if _has_no_valid_token(store.load(), now):
            _create_admin_token(store, config.state_dir / _TOKEN_FILE, now)
    except BaseException:
        store.close()
        raise
    return store


def _has_no_valid_token(tokens: Iterable[TokenRecord], now: float) -> bool:
    return all(record.describe_invalidity(now) for record in tokens)


def _create_admin_token(store: TokenStore, file: Path, now: float) -> None:
    token, record = mint_token(ADMIN.principal, now, title="made at the first start")
    audit_log.record_command(
        file.parent, "pilotlight.tokens.create", f"tokens/{record.name}", {"principal": record.principal}
    )
    # The file first: a token that nobody can read would stand in the way of another one.
    try:
        _write_secret_file(file, token + "\n")
    except OSError as error:
        raise Unavailable(f"Cannot write the admin's token to {file}: {error.strerror}.") from error
    store.put(record)
    logger.warning("Access control is on and there was no token. That of %s is in %s", ADMIN.principal, file)


def _write_secret_file(file: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically."""
    part = file.with_name(file.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as target:
        target.write(text)
    part.replace(file)
