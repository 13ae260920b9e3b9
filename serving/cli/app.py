"""Every command in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from typing import Annotated, Any

import typer

from serving.cli import serve
from serving.cli.admin import audit, runtimes, state, tokens
from serving.cli.commands import (
    iam,
    jobs,
    locations,
    logs,
    models,
    nodes,
    operations,
    predict,
    servers,
    training,
    versions,
    why,
)
from serving.cli.demo import demo
from serving.cli.flags.argument_order import CommandTree
from serving.cli.flags.flag_groups import with_flags
from serving.cli.flags.settings_flags import with_settings
from serving.cli.health import doctor
from serving.cli.local import local_batch, local_predict, local_train, prepare_command
from serving.cli.parity import parity
from serving.cli.simulation import simulate
from serving.cli.studies import studies, trials
from serving.cli.trials import job_trials
from serving.config import NodeConfig, ServeConfig, load_sourced_settings

# Help texts take the width of the terminal, up to that of a line which is still easily read.
_WIDTH = 100


_HELP = (
    "Serve models over the AI Platform Prediction v1 API.\n\n"
    "The commands are shaped as in gcloud ai-platform; they talk to the server at --server or "
    "PILOTLIGHT_SERVER.\n\nExit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers."
)


@dataclass(frozen=True, slots=True)
class _CommandGroup:
    """Commands that share their first word, or groups of them."""

    help_text: str
    members: Mapping[str, Callable[..., None] | _CommandGroup]


_GROUPS: Mapping[str, _CommandGroup] = {
    "models": _CommandGroup(
        "Create, show, change and delete models.",
        {
            "create": models.create_model,
            "describe": models.describe_model,
            "list": models.list_models,
            "update": models.update_model,
            "delete": models.delete_model,
            **iam.build_policy_commands("models", "model", "flowers"),
        },
    ),
    "versions": _CommandGroup(
        "Deploy versions of a model, show, change and delete them.",
        {
            "create": versions.create_version,
            "describe": versions.describe_version,
            "schema": versions.show_schema,
            "list": versions.list_versions,
            "update": versions.update_version,
            "set-default": versions.set_default_version,
            "delete": versions.delete_version,
        },
    ),
    "jobs": _CommandGroup(
        "Predict whole files and train models: start jobs, follow and cancel them.",
        {
            "submit": _CommandGroup(
                "Start a job.", {"prediction": jobs.submit_prediction, "training": training.submit_training}
            ),
            "describe": jobs.describe_job,
            "list": jobs.list_jobs,
            "update": jobs.update_job,
            "cancel": jobs.cancel_job,
            "stream-logs": jobs.stream_logs,
            "trials": job_trials.list_trials,
            "deploy": training.deploy_job,
            **iam.build_policy_commands("jobs", "job", "monday"),
        },
    ),
    "studies": _CommandGroup(
        "Search for the best parameters of anything: the server suggests trials, you run them.",
        {
            "create": studies.create_study,
            "describe": studies.describe_study,
            "list": studies.list_studies,
            "delete": studies.delete_study,
            "suggest": trials.suggest_trials,
            "add-measurement": trials.add_measurement,
            "check-early-stopping": trials.check_early_stopping,
            "complete": trials.complete_trial,
            "stop": trials.stop_trial,
            "trials": trials.list_trials,
            "optimal": trials.list_optimal_trials,
        },
    ),
    "projects": _CommandGroup(
        "Say who may do what in a project.", iam.build_policy_commands("projects", "project", "my-project")
    ),
    "locations": _CommandGroup(
        "Show the locations of the API.",
        {"list": locations.list_locations, "describe": locations.describe_location},
    ),
    "operations": _CommandGroup(
        "Follow and cancel long-running changes.",
        {
            "describe": operations.describe_operation,
            "wait": operations.wait_for_operation,
            "list": operations.list_operations,
            "cancel": operations.cancel_operation,
        },
    ),
    "tokens": _CommandGroup(
        "Make, list and revoke the tokens of a server with access control, where its state is.",
        {"create": tokens.create_token, "list": tokens.list_tokens, "revoke": tokens.revoke_token},
    ),
    "runtimes": _CommandGroup(
        "Say which interpreters compute models of old runtime versions.",
        {"add": runtimes.add_runtime, "list": runtimes.list_runtimes, "remove": runtimes.remove_runtime},
    ),
    "state": _CommandGroup(
        "Move the state of a server between its folder and a database.", {"copy": state.copy_state}
    ),
    "local": _CommandGroup(
        "Work without a server.",
        {
            "predict": local_predict.predict_locally,
            "batch": local_batch.predict_files_locally,
            "train": local_train.train_locally,
        },
    ),
}


def build_command_tree() -> CommandTree:
    """The groups with their commands, by name; commands outside of groups are left out."""
    return _build_tree(_GROUPS)


def _build_tree(members: Mapping[str, Callable[..., None] | _CommandGroup]) -> CommandTree:
    return {
        name: _build_tree(member.members) if isinstance(member, _CommandGroup) else None
        for name, member in members.items()
    }


@cache
def build() -> Callable[..., Any]:
    """The whole command; it is built once in a process."""
    app = _create_typer(_HELP, name="pilotlight")
    app.callback(help=_HELP)(_declare_common_flags)
    app.command()(with_settings(ServeConfig, partial(load_sourced_settings, ServeConfig))(serve.serve))
    app.command()(with_settings(NodeConfig, serve.load_node_settings)(serve.node))
    app.command()(prepare_command.prepare)
    app.command()(demo.demo)
    app.command()(with_flags(doctor.doctor))
    app.command()(with_flags(predict.predict))
    app.command()(with_flags(predict.explain))
    app.command()(with_flags(nodes.nodes))
    app.command()(with_flags(servers.servers))
    app.command()(with_flags(why.why))
    app.command()(with_flags(logs.logs))
    app.command()(with_flags(audit.audit))
    app.command()(simulate.simulate)
    app.command()(with_flags(parity.parity))
    _add_commands(app, _GROUPS)
    return typer.main.get_command(app)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"pilotlight {metadata.version('pilotlight')}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
)


def _declare_common_flags(*, version: Annotated[bool, _VERSION] = False) -> None:
    """What goes before any command."""


def _add_commands(app: typer.Typer, members: Mapping[str, Callable[..., None] | _CommandGroup]) -> None:
    for name, member in members.items():
        if isinstance(member, _CommandGroup):
            group = _create_typer(member.help_text)
            _add_commands(group, member.members)
            app.add_typer(group, name=name)
        else:
            app.command(name)(with_flags(member))


def _create_typer(text: str, name: str | None = None) -> typer.Typer:
    return typer.Typer(
        name=name,
        help=text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # help texts hold square brackets, and mean them
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": _WIDTH},
    )
