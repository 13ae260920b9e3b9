"""`pilotlight operations`."""

from __future__ import annotations

from serving.cli import options, verbs
from serving.cli.client import Client, rpc_error
from serving.cli.options import Listing
from serving.cli.output import Columns, Output
from serving.cli.progress import wait as wait_for

_COLUMNS: Columns = {
    "NAME": lambda operation: verbs.bare(operation["name"]),
    "OPERATION_TYPE": lambda operation: operation.get("metadata", {}).get("operationType", ""),
    "DONE": lambda operation: str(operation.get("done", False)),
    "ERROR": lambda operation: rpc_error(operation["error"]).status if "error" in operation else "",
}


def describe(client: Client, output: Output, operation: options.OperationArgument) -> None:
    """Show what an operation is about and how far it is.

    Example: pilotlight operations describe create_flowers_v1-1607934875576
    """
    verbs.describe(client, output, client.operation(operation))


def list_(client: Client, output: Output, listing: Listing) -> None:
    """List the operations of the project, newest first.

    Example: pilotlight operations list --limit 10
    """
    listing.show(client, output, f"{client.project}/operations", "operations", _COLUMNS)


def wait(client: Client, output: Output, operation: options.OperationArgument) -> None:
    """Wait until an operation is done, and show its result.

    Example: pilotlight operations wait create_flowers_v1-1607934875576
    """
    name = client.operation(operation)
    output.show(wait_for(client, client.call("GET", name), f"Waiting for {verbs.bare(name)}"))


def cancel(client: Client, output: Output, operation: options.OperationArgument) -> None:
    """Ask for an operation to end; one that is done stays as it is.

    Example: pilotlight operations cancel create_flowers_v1-1607934875576
    """
    name = client.operation(operation)
    output.done(f"Asked for {verbs.bare(name)} to be cancelled.", client.call("POST", f"{name}:cancel", {}))
