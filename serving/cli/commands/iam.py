"""The commands on policies, alike for models, jobs and projects: who has which role on one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.console import print_note
from serving.cli.flags import common_flags
from serving.cli.flags.common_flags import SelectionFlags
from serving.cli.flags.yaml_file import read_mapping
from serving.cli.formats import value_parsers

Command = Callable[..., None]

_NO_CONDITION = "None"

ResourceArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Whose policy: its id or full name.", show_default=False)
]
MemberOption = Annotated[
    str,
    typer.Option(
        "--member",
        help="Who: user:NAME@DOMAIN, serviceAccount:NAME@DOMAIN, allUsers or allAuthenticatedUsers.",
        show_default=False,
    ),
]
RoleOption = Annotated[
    str, typer.Option("--role", help="The role, such as roles/ml.modelUser.", show_default=False)
]
ConditionOption = Annotated[
    str | None,
    typer.Option(
        "--condition",
        metavar="expression=...,title=...",
        help="As gcloud has it. Servers take no conditions: None is the value that always works.",
        show_default=False,
    ),
]
ConditionFileOption = Annotated[
    Path | None,
    typer.Option(
        "--condition-from-file",
        parser=common_flags.parse_file_path,
        metavar="FILE",
        help="YAML file with a condition.",
        show_default=False,
    ),
]


def build_policy_commands(group: str, noun: str, example: str) -> Mapping[str, Command]:
    """The four commands of a group; `noun` is what its resources are, `example` the id of one."""

    def resolve_name(client: ApiClient, resource: str) -> str:
        match noun:
            case "model":
                return client.resolve_model_name(resource)
            case "job":
                return client.resolve_job_name(resource)
            case _:
                return client.resolve_project_name(resource)

    def read_policy(client: ApiClient, name: str) -> dict[str, Any]:
        # Google's API for projects asks for policies by POST.
        if noun == "project":
            return client.call("POST", f"{name}:getIamPolicy", {})
        return client.call("GET", f"{name}:getIamPolicy")

    def write_policy(client: ApiClient, output: CommandOutput, name: str, policy: Mapping[str, Any]) -> None:
        changed = client.call("POST", f"{name}:setIamPolicy", {"policy": policy})
        print_note(f"Updated IAM policy for {noun} [{name.rpartition('/')[2]}].")
        output.show(changed)

    def get_iam_policy(
        client: ApiClient, output: CommandOutput, resource: ResourceArgument, selection: SelectionFlags
    ) -> None:
        output.show_selected(read_policy(client, resolve_name(client, resource)), selection)

    def set_iam_policy(
        client: ApiClient,
        output: CommandOutput,
        resource: ResourceArgument,
        policy_file: Annotated[
            Path,
            typer.Argument(
                parser=common_flags.parse_file_path,
                metavar="FILE",
                help="JSON or YAML file with the policy; - is stdin.",
            ),
        ],
    ) -> None:
        policy = read_mapping(policy_file, "a policy, such as get-iam-policy prints")
        if "etag" not in policy:
            output.confirm("The policy has no etag: changes that others made meanwhile are lost. Continue?")
        write_policy(client, output, resolve_name(client, resource), policy)

    def add_iam_policy_binding(
        client: ApiClient,
        output: CommandOutput,
        resource: ResourceArgument,
        member: MemberOption,
        role: RoleOption,
        *,
        condition: ConditionOption = None,
        condition_from_file: ConditionFileOption = None,
    ) -> None:
        from serving.gateway.access.policy_bindings import add_member  # noqa: PLC0415  start-up time

        name = resolve_name(client, resource)
        wanted = _parse_condition(condition, condition_from_file)
        policy = read_policy(client, name)
        write_policy(client, output, name, add_member(policy, member, role, wanted))

    def remove_iam_policy_binding(
        client: ApiClient,
        output: CommandOutput,
        resource: ResourceArgument,
        member: MemberOption,
        role: RoleOption,
        *,
        condition: ConditionOption = None,
        condition_from_file: ConditionFileOption = None,
        remove_all: Annotated[
            bool,
            typer.Option("--all", help="Whatever the condition of the binding.", show_default=False),
        ] = False,
    ) -> None:
        from serving.gateway.access.policy_bindings import remove_member  # noqa: PLC0415  start-up time

        name = resolve_name(client, resource)
        wanted = _parse_condition(condition, condition_from_file)
        policy = read_policy(client, name)
        write_policy(
            client, output, name, remove_member(policy, member, role, wanted, any_condition=remove_all)
        )

    binding = "--member user:ada@example.com --role roles/ml.viewer"
    texts: Mapping[str, tuple[Command, str, str, str]] = {
        "get-iam-policy": (get_iam_policy, f"Show who has which role on a {noun}.", "", ""),
        "set-iam-policy": (
            set_iam_policy,
            f"Replace the policy of a {noun} by that of a file.",
            "With the etag that get-iam-policy printed, changes of others meanwhile are refused.",
            "instances.jsonl",
        ),
        "add-iam-policy-binding": (
            add_iam_policy_binding,
            f"Give somebody a role on a {noun}.",
            "",
            binding,
        ),
        "remove-iam-policy-binding": (
            remove_iam_policy_binding,
            f"Take a role on a {noun} from somebody.",
            "",
            binding,
        ),
    }
    for verb, (command, title, more, flags) in texts.items():
        line = f"Example: pilotlight {group} {verb} {example} {flags}".rstrip()
        command.__doc__ = "\n\n".join(filter(None, (title, more, line)))
        command.__name__ = verb.replace("-", "_")
    return {verb: command for verb, (command, *_) in texts.items()}


def _parse_condition(text: str | None, file: Path | None) -> dict[str, Any] | None:
    """The condition that the two flags give. Raises BadParameter."""
    if text is not None and file is not None:
        raise typer.BadParameter("Give either --condition or --condition-from-file, not both.")
    if file is not None:
        return read_mapping(file, "a condition: expression and title")
    if text is None or text == _NO_CONDITION:
        return None
    condition: dict[str, Any] = dict(value_parsers.parse_pairs(text))
    if not {"expression", "title"} <= condition.keys() <= {"expression", "title", "description"}:
        raise typer.BadParameter(
            "--condition takes expression=...,title=... and, if you like, description=..."
        )
    return condition
