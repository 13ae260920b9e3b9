"""The address that the server is to listen on."""

from __future__ import annotations

import errno
import socket

from serving.cli.health.finding import Finding, fail, ok, warn


def port(host: str, number: int, server: int | None) -> Finding:
    """Whether the port can be had; `server` is the pid of the server that uses the state folder, if any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, number))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and server is not None:
            return ok(
                "port", f"{host}:{number} is in use; a server runs on this state folder (pid {server})."
            )
        if error.errno == errno.EADDRINUSE:
            return warn(
                "port",
                f"{host}:{number} is in use by another program.",
                f"Find it (`ss -ltnp 'sport = :{number}'`) and end it, or choose another --port.",
            )
        return fail(
            "port",
            f"The server could not listen on {host}:{number}: {error.strerror or error}.",
            "Choose another --host or --port; ports below 1024 take special rights.",
        )
    return ok("port", f"{host}:{number} is free." if number else "A free port will be picked.")
