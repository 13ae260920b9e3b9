"""Every command in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated

import typer

from serving.cli import (
    audit,
    demo,
    doctor,
    explain,
    iam,
    jobs,
    local,
    local_batch,
    locations,
    logs,
    models,
    nodes,
    operations,
    parity,
    predict,
    runtimes,
    server,
    simulate,
    tokens,
    versions,
    why,
)
from serving.cli.flags import with_flags
from serving.cli.settings import with_settings
from serving.cli.words import Tree
from serving.config import NodeConfig, ServeConfig

# Help texts take the width of the terminal, up to that of a line which is still easily read.
_WIDTH = 100


_HELP = (
    "Serve models over the AI Platform Prediction v1 API.\n\n"
    "The commands are shaped as in gcloud ai-platform; they talk to the server at --server or "
    "PILOTLIGHT_SERVER.\n\nExit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers."
)


@dataclass(frozen=True, slots=True)
class _Group:
    """Commands that share their first word, or groups of them."""

    text: str
    members: Mapping[str, Callable[..., None] | _Group]


_GROUPS: Mapping[str, _Group] = {
    "models": _Group(
        "Create, show, change and delete models.",
        {
            "create": models.create,
            "describe": models.describe_model,
            "list": models.list_,
            "update": models.update,
            "delete": models.delete,
            **iam.policy_commands("models", "model", "flowers"),
        },
    ),
    "versions": _Group(
        "Deploy versions of a model, show, change and delete them.",
        {
            "create": versions.create,
            "describe": versions.describe,
            "schema": versions.schema,
            "list": versions.list_,
            "update": versions.update,
            "set-default": versions.set_default,
            "delete": versions.delete,
        },
    ),
    "jobs": _Group(
        "Predict whole files: start jobs, follow and cancel them.",
        {
            "submit": _Group("Start a job.", {"prediction": jobs.submit_prediction}),
            "describe": jobs.describe,
            "list": jobs.list_,
            "update": jobs.update,
            "cancel": jobs.cancel,
            "stream-logs": jobs.stream_logs,
            **iam.policy_commands("jobs", "job", "monday"),
        },
    ),
    "projects": _Group(
        "Say who may do what in a project.", iam.policy_commands("projects", "project", "my-project")
    ),
    "locations": _Group(
        "Show the locations of the API.", {"list": locations.list_, "describe": locations.describe}
    ),
    "operations": _Group(
        "Follow and cancel long-running changes.",
        {
            "describe": operations.describe,
            "wait": operations.wait,
            "list": operations.list_,
            "cancel": operations.cancel,
        },
    ),
    "tokens": _Group(
        "Make, list and revoke the tokens of a server with access control, in its state folder.",
        {"create": tokens.create, "list": tokens.list_, "revoke": tokens.revoke},
    ),
    "runtimes": _Group(
        "Say which interpreters compute models of old runtime versions.",
        {"add": runtimes.add, "list": runtimes.list_, "remove": runtimes.remove},
    ),
    "local": _Group("Work without a server.", {"predict": local.predict, "batch": local_batch.batch}),
}


def command_tree() -> Tree:
    """The groups with their commands, by name; commands outside of groups are left out."""
    return _build_tree(_GROUPS)


def _build_tree(members: Mapping[str, Callable[..., None] | _Group]) -> Tree:
    return {
        name: _build_tree(member.members) if isinstance(member, _Group) else None
        for name, member in members.items()
    }


def build() -> typer.Typer:
    """The command with all its groups."""
    app = _typer(_HELP, name="pilotlight")
    app.callback(help=_HELP)(_common)
    app.command()(with_settings(ServeConfig)(server.serve))
    app.command()(with_settings(NodeConfig, server.node_settings)(server.node))
    app.command()(demo.demo)
    app.command()(with_flags(doctor.doctor))
    app.command()(with_flags(predict.predict))
    app.command()(with_flags(explain.explain))
    app.command()(with_flags(nodes.nodes))
    app.command()(with_flags(why.why))
    app.command()(with_flags(logs.logs))
    app.command()(with_flags(audit.audit))
    app.command()(simulate.simulate)
    app.command()(with_flags(parity.parity))
    _add(app, _GROUPS)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        print(f"pilotlight {metadata.version('pilotlight')}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
)


def _common(*, version: Annotated[bool, _VERSION] = False) -> None:
    """What goes before any command."""


def _add(app: typer.Typer, members: Mapping[str, Callable[..., None] | _Group]) -> None:
    for name, member in members.items():
        if isinstance(member, _Group):
            group = _typer(member.text)
            _add(group, member.members)
            app.add_typer(group, name=name)
        else:
            app.command(name)(with_flags(member))


def _typer(text: str, name: str | None = None) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # help texts hold square brackets, and mean them
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH},
    )
