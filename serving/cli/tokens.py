"""`pilotlight tokens`: they are made in the state folder; a running server notices within a second."""

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
from serving.cli.lines import note
from serving.cli.output import Output
from serving.config import ServeConfig
from serving.errors import InvalidArgument

if TYPE_CHECKING:
    from serving.gateway.access.token_store import TokenStore
    from serving.gateway.access.tokens import TokenRecord

# Imports of the server's parts stand inside the functions: they take longer than most commands.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFolder:
    """The flag that says which server's tokens are meant."""

    state_dir: Annotated[
        Path | None,
        typer.Option(
            help="The server's state folder (default: PILOTLIGHT_STATE_DIR, or where `serve` keeps it).",
            show_default=False,
        ),
    ] = None

    @property
    def path(self) -> Path:
        """Where it is."""
        return (
            config.load_config(ServeConfig, {"state_dir": self.state_dir}).state_dir.expanduser().absolute()
        )

    def record(self, change: str, token: str, **about: str) -> None:
        """Have it in the audit log that a token is about to be changed. Raises Unavailable."""
        from serving.gateway.audit.recorder import record_command  # noqa: PLC0415

        record_command(self.path, f"pilotlight.tokens.{change}", f"tokens/{token}", about)

    @contextmanager
    def tokens(self) -> Iterator[TokenStore]:
        """The tokens in it."""
        from serving.gateway.access.token_store import TokenStore  # noqa: PLC0415

        folder = self.path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"Cannot use the state folder {folder}: {error.strerror}.") from error
        store = TokenStore(folder / "state.db")
        try:
            yield store
        finally:
            store.close()


def create(
    principal: Annotated[
        str, typer.Argument(help="Who shows it: user:ann@example.com, serviceAccount:ci@example.com.")
    ],
    folder: StateFolder,
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
    from serving.gateway.access.policy import check_principal  # noqa: PLC0415
    from serving.gateway.access.tokens import mint_token, parse_duration  # noqa: PLC0415

    seconds = parse_duration(expires) if expires else None
    token, record = mint_token(check_principal(principal), time.time(), title=name, seconds=seconds)
    with folder.tokens() as tokens:
        folder.record("create", record.name, principal=record.principal)
        tokens.put(record)
    note(f"Created token [{record.name}] of {record.principal}, {_until(record)}. Keep it: it is shown once.")
    print(token)


def list_(folder: StateFolder, output: Output) -> None:
    """List tokens, those that are expired or revoked too. None can be shown again.

    Example: pilotlight tokens list
    """
    with folder.tokens() as tokens:
        found = tokens.load()
    now = time.time()
    output.show_list(
        [_shown(record, now) for record in found],
        {
            "ID": lambda token: str(token["id"]),
            "PRINCIPAL": lambda token: str(token["principal"]),
            "STATE": lambda token: str(token["state"]),
            "CREATED": lambda token: str(token["createTime"]),
            "EXPIRES": lambda token: str(token.get("expireTime", "never")),
            "NAME": lambda token: str(token.get("name", "")),
        },
    )


def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.", show_default=False)],
    folder: StateFolder,
) -> None:
    """Make a token worthless, within a second.

    Example: pilotlight tokens revoke 3f2a9c0d1b7e
    """
    with folder.tokens() as tokens:
        if any(record.name == token for record in tokens.load()):
            folder.record("revoke", token)
        record = tokens.revoke(token, time.time())
    note(f"Revoked token [{record.name}] of {record.principal}.")


def _shown(record: TokenRecord, now: float) -> dict[str, Any]:
    shown = {
        "id": record.name,
        "principal": record.principal,
        "state": record.describe_invalidity(now) or "good",
        "createTime": _time(record.created),
    }
    if record.expires is not None:
        shown["expireTime"] = _time(record.expires)
    if record.title:
        shown["name"] = record.title
    return shown


def _until(record: TokenRecord) -> str:
    return "good for ever" if record.expires is None else f"good until {_time(record.expires)}"


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
