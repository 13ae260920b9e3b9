"""Checks of the machine or container: system, cores, memory, open files, clock and ports."""

from __future__ import annotations

import datetime
import errno
import importlib.util
import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

from autoscaler import linux, machine
from serving import config
from serving.cli.health.result import CheckResult, format_size, report_failure, report_ok, report_warning
from serving.config import ServeConfig
from serving.frameworks import load_frameworks

_ROOT = Path("/")
# The gateway and a scikit-learn pilot with one node need the least; with TensorFlow it is some 700 MiB.
_LEAST_MEMORY, _GOOD_MEMORY = 256 << 20, 1 << 30
_LEAST_FILES, _GOOD_FILES = 256, 4096
# The release date: an earlier clock is wrong.
_EARLIEST_TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_MAX_AGE = datetime.timedelta(days=50 * 365)
_JUMP = 0.5
_GRPC = ("grpc", "grpc_health", "grpc_reflection")


def check_system() -> CheckResult:
    """Whether nodes can be forked and watched as on Linux."""
    if linux.AVAILABLE:
        return report_ok("system", f"Linux {os.uname().release}: nodes are forked from pilots.")
    return report_warning(
        "system",
        f"{os.uname().sysname} lacks what forking nodes takes: they start cold, in seconds.",
        "Run the server on Linux, or keep nodes awake with minNodes.",
    )


def check_cores(settings: ServeConfig, root: Path = _ROOT) -> CheckResult:
    """The usable processors, compared with the settings."""
    usable, there = machine.count_cores(root), os.cpu_count() or 1
    seen = f"{usable} of {there} processors may be used"
    if usable < there:
        seen += " (cgroup quota or CPU affinity)"
    asked = {"max_nodes": settings.max_nodes, "threads": settings.threads}
    for setting, value in asked.items():
        if value > usable:
            return report_warning(
                "cores",
                f"{seen}, and the setting {setting} asks for {value}.",
                f"Set {setting} to {usable} at most, or give the server more processors.",
            )
    return report_ok("cores", f"{seen}.")


def check_memory(settings: ServeConfig, root: Path = _ROOT) -> CheckResult:
    """The available memory, compared with what the settings promise to nodes."""
    left = machine.available_memory(root)
    seen = f"{format_size(left)} of memory may be taken"
    if left < _LEAST_MEMORY:
        return report_failure(
            "memory",
            f"{seen}: too little for a server with one node.",
            "End other processes, or raise the container's memory limit.",
        )
    if settings.memory_bytes > left:
        return report_warning(
            "memory",
            f"{seen}, and the setting memory_bytes promises {format_size(settings.memory_bytes)} to nodes.",
            "Lower memory_bytes, or set it to 0: then nodes get what there is.",
        )
    large = max(load_frameworks().values(), key=lambda framework: framework.pilot_bytes)
    if left < _GOOD_MEMORY:
        return report_warning(
            "memory",
            f"{seen}: not enough for {large.title}, "
            f"whose pilot alone takes {format_size(large.pilot_bytes)}.",
            "Give the server more memory, or serve models of other frameworks only.",
        )
    return report_ok("memory", f"{seen}.")


def check_open_files() -> CheckResult:
    """The limit of open files: each connection, node and model file is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _GOOD_FILES:
        return report_ok(
            "open files", f"{'any number' if hard == resource.RLIM_INFINITY else hard} may be open."
        )
    advice = f"Raise the hard limit to {_GOOD_FILES} or more: `ulimit -Hn`, LimitNOFILE= of systemd."
    seen = f"{hard} files may be open at a time (hard limit)"
    if hard < _LEAST_FILES:
        return report_failure("open files", f"{seen}: too few for a server.", advice)
    return report_warning("open files", f"{seen}: about as many clients may be connected.", advice)


def check_clock(
    newest: datetime.datetime | None,
    wall: Callable[[], float] = time.time,
    steady: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> CheckResult:
    """Whether the clock is plausible and does not jump; `newest` is the last change of the state."""
    start, steady_start = wall(), steady()
    pause(0.05)
    jump = (wall() - start) - (steady() - steady_start)
    now = datetime.datetime.fromtimestamp(wall(), datetime.UTC)
    shown = f"The clock says {now:%Y-%m-%d %H:%M:%S} UTC"
    advice = (
        "Set the clock and keep it right (chrony, systemd-timesyncd): tokens, TLS and Google's API need it."
    )
    if not _EARLIEST_TIME < now < _EARLIEST_TIME + _MAX_AGE:
        return report_failure("clock", f"{shown}, which cannot be.", advice)
    if abs(jump) > _JUMP:
        return report_warning("clock", f"{shown}; it jumped by {jump:.1f} s while it was looked at.", advice)
    if newest is not None and newest > now + datetime.timedelta(minutes=5):
        return report_warning(
            "clock", f"{shown}; the state was last changed later, at {newest:%Y-%m-%d %H:%M:%S} UTC.", advice
        )
    return report_ok("clock", f"{shown}.")


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
