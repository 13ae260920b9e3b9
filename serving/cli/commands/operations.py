"""`pilotlight operations`."""

from __future__ import annotations

from serving.cli.api_client import ApiClient, parse_rpc_status
from serving.cli.command_output import CommandOutput, TableColumns
from serving.cli.commands import resource_commands
from serving.cli.flags import common_flags
from serving.cli.flags.common_flags import ListFlags
from serving.cli.progress.operation_progress import wait_until_done

_COLUMNS: TableColumns = {
    "NAME": lambda operation: resource_commands.extract_id(operation["name"]),
    "OPERATION_TYPE": lambda operation: operation.get("metadata", {}).get("operationType", ""),
    "DONE": lambda operation: str(operation.get("done", False)),
    "ERROR": lambda operation: parse_rpc_status(operation["error"]).status if "error" in operation else "",
}


def describe_operation(
    client: ApiClient, output: CommandOutput, operation: common_flags.OperationArgument
) -> None:
    """Show what an operation is about and how far it is.

    Example: pilotlight operations describe create_flowers_v1-1607934875576
    """
    resource_commands.describe_resource(client, output, client.resolve_operation_name(operation))


def list_operations(client: ApiClient, output: CommandOutput, listing: ListFlags) -> None:
    """List the operations of the project, newest first.

    Example: pilotlight operations list --limit 10
    """
    listing.show_resources(client, output, f"{client.project_name}/operations", "operations", _COLUMNS)


def wait_for_operation(
    client: ApiClient, output: CommandOutput, operation: common_flags.OperationArgument
) -> None:
    """Wait until an operation is done, and show its result.

    Example: pilotlight operations wait create_flowers_v1-1607934875576
    """
    name = client.resolve_operation_name(operation)
    output.show(
        wait_until_done(client, client.call("GET", name), f"Waiting for {resource_commands.extract_id(name)}")
    )


def cancel_operation(
    client: ApiClient, output: CommandOutput, operation: common_flags.OperationArgument
) -> None:
    """Ask for an operation to end; one that is done stays as it is.

    Example: pilotlight operations cancel create_flowers_v1-1607934875576
    """
    name = client.resolve_operation_name(operation)
    output.report_change(
        f"Asked for {resource_commands.extract_id(name)} to be cancelled.",
        client.call("POST", f"{name}:cancel", {}),
    )
