"""Every command in one place."""

from __future__ import annotations

import typer

from serving.cli import server


def build() -> typer.Typer:
    """The command with all its groups."""
    app = typer.Typer(
        name="pilotlight",
        help="Serve models over the AI Platform Prediction v1 API.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command()(server.serve)
    app.command()(server.node)
    return app
