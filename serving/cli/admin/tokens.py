"""`pilotlight tokens`: changes them where the state is; a running server notices within a second."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving import config
from serving.cli.command_output import CommandOutput
from serving.cli.console import print_note
from serving.config import ServeConfig
from serving.errors import InvalidArgument

if TYPE_CHECKING:
    from serving.gateway.access.token_store import TokenStore
    from serving.gateway.access.tokens import TokenRecord

# Imports of the server's parts stand inside the functions: they take longer than most commands.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDirFlags:
    """The flag that selects the server's state folder."""

    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="The server's state folder (default: PILOTLIGHT_STATE_DIR, or where `serve` keeps it).",
            show_default=False,
        ),
    ] = None

    @property
    def settings(self) -> ServeConfig:
        return config.load_config(ServeConfig, {"state_dir": self.state_dir})

    @property
    def path(self) -> Path:
        return self.settings.state_dir.expanduser().absolute()

    def record_change(self, change: str, token: str, **details: str) -> None:
        """Write to the audit log that a token is about to change. Raises Unavailable."""
        from serving.gateway.audit.audit_log import record_command  # noqa: PLC0415

        record_command(self.path, f"pilotlight.tokens.{change}", f"tokens/{token}", details)

    @contextmanager
    def open_token_store(self) -> Iterator[TokenStore]:
        from serving.gateway.access.token_store import TokenStore  # noqa: PLC0415
        from serving.gateway.state.state_home import STATE_FILE, check_home  # noqa: PLC0415

        folder = self.path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"Cannot use the state folder {folder}: {error.strerror}.") from error
        address = self.settings.state
        if not address:
            check_home(folder, None)
        store = TokenStore(address or folder / STATE_FILE)
        try:
            yield store
        finally:
            store.close()


def create_token(
    principal: Annotated[
        str, typer.Argument(help="Who shows it: user:ann@example.com, serviceAccount:ci@example.com.")
    ],
    folder: StateDirFlags,
    *,
    expires: Annotated[
        str, typer.Option(metavar="30d", help="How long it is good: 30d, 12h, 90m.", show_default=False)
    ] = "",
    name: Annotated[str, typer.Option(help="What it is for.", show_default=False)] = "",
) -> None:
    """Make a token and print it. It is shown once: only its hash is kept.

    A token says who calls; what they may do is said by policies. user:admin@localhost may do everything.

    Example: pilotlight tokens create user:ann@example.com --expires 30d
    """
    from serving.gateway.access.policy import normalize_principal  # noqa: PLC0415
    from serving.gateway.access.tokens import mint_token, parse_lifetime  # noqa: PLC0415

    seconds = parse_lifetime(expires) if expires else None
    token, record = mint_token(normalize_principal(principal), time.time(), title=name, seconds=seconds)
    with folder.open_token_store() as tokens:
        folder.record_change("create", record.name, principal=record.principal)
        tokens.put(record)
    print_note(
        f"Created token [{record.name}] of {record.principal}, {_format_expiry(record)}. "
        "Keep it: it is shown once."
    )
    print(token)


def list_tokens(folder: StateDirFlags, output: CommandOutput) -> None:
    """List tokens, those that are expired or revoked too. None can be shown again.

    Example: pilotlight tokens list
    """
    with folder.open_token_store() as tokens:
        found = tokens.load()
    now = time.time()
    output.show_list(
        [_describe_token(record, now) for record in found],
        {
            "ID": lambda token: str(token["id"]),
            "PRINCIPAL": lambda token: str(token["principal"]),
            "STATE": lambda token: str(token["state"]),
            "CREATED": lambda token: str(token["createTime"]),
            "EXPIRES": lambda token: str(token.get("expireTime", "never")),
            "NAME": lambda token: str(token.get("name", "")),
        },
    )


def revoke_token(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)],
    folder: StateDirFlags,
) -> None:
    """Revoke a token; a running server refuses it within a second.

    Example: pilotlight tokens revoke 3f2a9c0d1b7e
    """
    with folder.open_token_store() as tokens:
        if any(record.name == token for record in tokens.load()):
            folder.record_change("revoke", token)
        record = tokens.revoke(token, time.time())
    print_note(f"Revoked token [{record.name}] of {record.principal}.")


def _describe_token(record: TokenRecord, now: float) -> dict[str, Any]:
    shown = {
        "id": record.name,
        "principal": record.principal,
        "state": record.describe_invalidity(now) or "good",
        "createTime": _format_time(record.created),
    }
    if record.expires is not None:
        shown["expireTime"] = _format_time(record.expires)
    if record.title:
        shown["name"] = record.title
    return shown


def _format_expiry(record: TokenRecord) -> str:
    return "good for ever" if record.expires is None else f"good until {_format_time(record.expires)}"


def _format_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
