"""Checks of the ports that the server is to listen on."""

from __future__ import annotations

import errno
import importlib.util
import socket

from serving import config
from serving.cli.health.result import CheckResult, report_failure, report_ok, report_warning
from serving.config import ServeConfig

_GRPC = ("grpc", "grpc_health", "grpc_reflection")


def check_grpc_port(settings: ServeConfig, server: int | None) -> CheckResult:
    """Whether gRPC is installed and its port is free; `server` as in `check_port`."""
    if settings.grpc_port == config.OFF:
        return report_ok("grpc port", "gRPC is switched off (setting grpc_port).")
    if missing := [name for name in _GRPC if importlib.util.find_spec(name) is None]:
        return report_failure(
            "grpc port",
            f"The setting grpc_port takes gRPC, of which is not installed: {', '.join(missing)}.",
            "pip install 'pilotlight[grpc]'.",
        )
    return check_port(settings.host, int(settings.grpc_port), server, setting="grpc_port")


def check_port(host: str, number: int, server: int | None, *, setting: str = "port") -> CheckResult:
    """Whether the port is free; `server` is the pid of the server that uses the state folder, if any."""
    check, flag = setting.replace("_", " "), config.flag_of_setting(setting)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, number))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and server is not None:
            return report_ok(
                check, f"{host}:{number} is in use; a server runs on this state folder (pid {server})."
            )
        if error.errno == errno.EADDRINUSE:
            return report_warning(
                check,
                f"{host}:{number} is in use by another program.",
                f"Find it (`ss -ltnp 'sport = :{number}'`) and end it, or choose another {flag}.",
            )
        return report_failure(
            check,
            f"The server could not listen on {host}:{number}: {error.strerror or error}.",
            f"Choose another --host or {flag}; ports below 1024 take special rights.",
        )
    return report_ok(check, f"{host}:{number} is free." if number else "A free port will be picked.")
