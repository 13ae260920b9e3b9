"""`pilotlight servers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from serving.cli.api_client import ApiClient
from serving.cli.command_output import CommandOutput
from serving.cli.commands.nodes import format_duration
from serving.cli.formats.printers import print_table

_HEADINGS = (
    "SERVER", "ADDRESS", "STATE", "SEEN", "MEMORY", "PROCESSORS", "LOAD", "WEIGHT", "NODES", "REQUESTS",
)  # fmt: skip


def servers(client: ApiClient, output: CommandOutput) -> None:
    """Show the servers that share a database, as the one that is asked sees them.

    A version is placed on the servers that are alive.
    LOAD is the part of memory or processors that nodes need, whichever is more.
    WEIGHT is how much of itself a server offers, in sixteenths; one with too much to do offers less.

    Example: pilotlight servers
    """
    show_servers(client.get_unversioned("/servers"), output)


def show_servers(found: Mapping[str, Any], output: CommandOutput) -> None:
    """What `GET /servers` answered, as a table."""
    if output.format is not None:
        output.show(found)
    elif not found["servers"]:
        print("This server passes no requests on to others (settings state, peer_port).")
    else:
        print_table(_HEADINGS, [_build_row(one) for one in found["servers"]])
        for one in found["servers"]:
            if one["alive"] and "scaling" in one:
                print(f"{one['name']} decides on the number of servers: {one['scaling']['summary']}")


def _build_row(server: Mapping[str, Any]) -> Sequence[str]:
    return (
        server["name"],
        server["address"],
        _describe_state(server),
        format_duration(server["ageSeconds"]),
        f"{server['memoryBytes'] / 2**30:.1f} GiB",
        str(server["processors"]),
        f"{server['load']:.0%}",
        f"{server['weight']}/16",
        str(server["nodes"]),
        str(server["requests"]),
    )


def _describe_state(server: Mapping[str, Any]) -> str:
    if not server["alive"]:
        return "silent"
    if server["draining"]:
        return "draining"
    if server["starting"]:
        return "starting"
    return "alive, not reached" if server["reached"] is False else "alive"
