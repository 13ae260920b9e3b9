"""Every command in one place."""

from __future__ import annotations

from collections.abc import Callable

import typer

from serving.cli import demo, local, models, operations, predict, server, versions
from serving.cli.flags import with_flags

_GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "models": (
        "Create, show, change and delete models.",
        {
            "create": models.create,
            "describe": models.describe,
            "list": models.list_,
            "update": models.update,
            "delete": models.delete,
        },
    ),
    "versions": (
        "Deploy versions of a model, show, change and delete them.",
        {
            "create": versions.create,
            "describe": versions.describe,
            "list": versions.list_,
            "update": versions.update,
            "set-default": versions.set_default,
            "delete": versions.delete,
        },
    ),
    "operations": (
        "Follow and cancel long-running changes.",
        {
            "describe": operations.describe,
            "wait": operations.wait,
            "list": operations.list_,
            "cancel": operations.cancel,
        },
    ),
    "local": ("Work without a server.", {"predict": local.predict}),
}


def build() -> typer.Typer:
    """The command with all its groups."""
    app = _typer(
        "Serve models over the AI Platform Prediction v1 API.\n\n"
        "The commands are shaped as in gcloud ai-platform; they talk to the server at --server or "
        "PILOTLIGHT_SERVER.\n\nExit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers.",
        name="pilotlight",
    )
    app.command()(server.serve)
    app.command()(server.node)
    app.command()(demo.demo)
    app.command()(with_flags(predict.predict))
    for name, (text, commands) in _GROUPS.items():
        group = _typer(text)
        for verb, command in commands.items():
            group.command(verb)(with_flags(command))
        app.add_typer(group, name=name)
    return app


def _typer(text: str, name: str | None = None) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
