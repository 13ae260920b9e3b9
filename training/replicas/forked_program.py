"""Runs a module in a fork as `python -m MODULE` runs it in a new interpreter.

A fork of a process that has imported a framework has that at once. What an interpreter or a library reads at
its start or import cannot be changed any more; `find_obstacle` says when that matters.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import pkgutil
import runpy
import sys
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from autoscaler import linux

# Variables that are read by the interpreter when it starts, or by a library when it is imported or warmed up.
_EARLY_VARIABLES = (
    "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "BLIS_", "KMP_", "GOMP_", "NUMEXPR_", "JOBLIB_", "KERAS_",
    "TF_CPP_", "TF_ENABLE_", "TF_ONEDNN_", "TF_USE_", "TF_XLA_", "ONEDNN_", "DNNL_", "XLA_", "MALLOC_",
    "GLIBC_", "LD_", "LANG", "LC_", "JAX_",
)  # fmt: skip
# Pilots import it.
_THREAD_POOLS = "training.replicas.thread_pools"


def find_obstacle(variables: Mapping[str, str], folders: Sequence[Path]) -> str:
    """Why a program cannot run in a fork of this process; "" when it can.

    `variables` are those that the user has set, `folders` those of the program's modules.
    """
    early = sorted(
        name
        for name, value in variables.items()
        if name.startswith(_EARLY_VARIABLES) and _read_start_environment().get(name) != value
    )
    if early:
        return f"{early[0]} is read when Python or a library starts"
    shadowed = sorted(
        {module.name for module in pkgutil.iter_modules(map(str, folders))} & sys.modules.keys()
    )
    if shadowed:
        return f"the packages have a module {shadowed[0]}, and another of that name is loaded"
    threads = linux.thread_names()
    return f"the process has other threads: {', '.join(threads)}" if len(threads) > 1 else ""


def _read_start_environment() -> dict[str, str]:
    """The environment that this interpreter was started with; forks keep it."""
    entries = Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def run_module(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path,
    threads: int,
) -> NoReturn:
    """Run a module as the main program, in a working folder, and end the process as an interpreter does.

    `threads` is how many libraries may use.
    """
    gc.freeze()  # sets apart what is inherited
    _enter_process(module, arguments, environment, folder)
    _limit_threads(threads)
    code = _run_main(module)
    # In the order of an interpreter's end.
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    _flush_streams()
    _close_files()
    # What frameworks do when an interpreter is taken apart can hang in a fork.
    os._exit(code)


def _enter_process(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
) -> None:
    linux.name_process("python")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    new = [str(folder), *(path for path in named if path and path not in sys.path)]
    sys.path[:1] = new
    # What is known of all other folders holds. Forgetting it would cost a fifth of a replica's start.
    for path in new:
        sys.path_importer_cache.pop(path, None)
    sys.argv = ["-m", *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    sys.modules["__main__"] = types.ModuleType("__main__")
    if "numpy.random" in sys.modules:  # `random` has reseeded itself
        sys.modules["numpy.random"].seed()


def _limit_threads(threads: int) -> None:
    """Pilots are started with one thread for each library, as many nodes share a machine."""
    if _THREAD_POOLS in sys.modules:
        sys.modules[_THREAD_POOLS].set_thread_count(threads)


def _run_main(module: str) -> int:
    """Run it in the module `__main__`; returns the exit code."""
    try:
        # What `python -m` itself calls. The public function runs a copy of `__main__`, which is gone when
        # threads and exit handlers run.
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
    except SystemExit as end:
        return _exit_code(end)
    except BaseException as error:
        trace = error.__traceback__
        error = error.with_traceback(trace.tb_next if trace is not None else None)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def _close_files() -> None:
    """Close the files that the program has left open, so that what it has written is in them.

    Those that were there before it are frozen, and not among the objects.
    """
    files = [found for found in gc.get_objects() if issubclass(type(found), io.IOBase)]
    for file in sorted(files, key=_rank_file):
        # An interpreter does not report them either.
        with contextlib.suppress(Exception):
            file.close()


def _rank_file(file: io.IOBase) -> int:
    """Files that write to others come before these, as text to gzip to a buffer to a descriptor."""
    if isinstance(file, io.TextIOBase):
        return 0
    if isinstance(file, io.RawIOBase):
        return 3
    return 2 if isinstance(file, io.BufferedWriter | io.BufferedRandom | io.BytesIO) else 1


def _exit_code(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1
