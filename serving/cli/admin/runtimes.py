"""`pilotlight runtimes`: which interpreters compute models of old runtime versions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from serving import config
from serving.cli.admin.tokens import StateDirFlags
from serving.cli.console import print_note, print_warning
from serving.config import ServeConfig
from serving.errors import InvalidArgument, LoadFailed
from serving.predictor import interpreters, python_environments
from serving.predictor.runtime_versions import RUNTIME_VERSIONS, find_compatible_requirements

RuntimeVersionArgument = Annotated[
    str, typer.Argument(metavar="VERSION", help="The runtime version: 1.15, 2.11.", show_default=False)
]


def add_runtime(
    version: RuntimeVersionArgument,
    folder: StateDirFlags,
    *,
    python: Annotated[
        str,
        typer.Option(
            help="The interpreter, or the folder of its environment; with --create the one to build it from.",
            show_default=False,
        ),
    ] = "",
    create: Annotated[
        bool,
        typer.Option(
            "--create",
            help="Build an environment with the libraries that AI Platform had in this version. Needs a "
            "package index.",
            show_default=False,
        ),
    ] = False,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="PACKAGE",
            help="Build it with this instead, as pip takes it: scikit-learn==1.3.2. May be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Have models with this runtimeVersion computed by another interpreter.

    A running server notices. Versions that are deployed already keep the interpreter they have.

    Example: pilotlight runtimes add 1.15 --python /opt/py37/bin/python

    Example: pilotlight runtimes add 2.11 --create

    Example: pilotlight runtimes add 1.3.2 --create --with scikit-learn==1.3.2
    """
    interpreters.check_runtime_version(version)
    if not (python or create):
        raise typer.BadParameter("Say which interpreter: --python PATH, or --create to build one.")
    if with_ and not create:
        raise typer.BadParameter("--with goes with --create.")
    path = interpreters.resolve_interpreter_path(python) if python else ""
    if create:
        path = _build_environment(version, folder.path, path, with_ or ())
    from serving.predictor.interpreter_check import check_interpreter  # noqa: PLC0415  start-up time of the others

    found = check_interpreter(path)
    file = folder.path / interpreters.INTERPRETERS_FILE
    interpreters.write_interpreters(file, {**interpreters.read_interpreters(file), version: path})
    print_note(f"Runtime version {version} is computed by {path}: {found.description}.")
    for name, reason in found.broken.items():
        print_warning(f"Its {name} does not work: {reason}")
    if found.threads > 1:
        print_warning("Its libraries start threads when they are imported, so nodes start it cold each time.")


def list_runtimes(folder: StateDirFlags) -> None:
    """Show the interpreters of all runtime versions, and the libraries that they have.

    Example: pilotlight runtimes list
    """
    from serving.predictor.interpreter_check import check_interpreter  # noqa: PLC0415  start-up time of the others

    found = collect_interpreters(folder.path)
    if not found:
        print_note(
            "None: all models are computed by the server's own libraries. `pilotlight runtimes add` adds one."
        )
    for version, path in sorted(found.items()):
        try:
            said = check_interpreter(path).description
        except LoadFailed as error:
            said = error.message
        print(f"{version:<8}  {path}  {said}")


def remove_runtime(version: RuntimeVersionArgument, folder: StateDirFlags) -> None:
    """Have models with this runtimeVersion computed by the server's own libraries again.

    An environment that was built for it stays as long as versions use it: delete its folder yourself.

    Example: pilotlight runtimes remove 1.15
    """
    file = folder.path / interpreters.INTERPRETERS_FILE
    left = interpreters.read_interpreters(file)
    if left.pop(version, None) is None:
        raise InvalidArgument(f"There is no interpreter for the runtime version {version} in {file}.")
    interpreters.write_interpreters(file, left)
    print_note(f"Runtime version {version} is computed by the server's own libraries.")


def collect_interpreters(state_dir: Path) -> Mapping[str, str]:
    """The interpreters by runtime version, those of the setting `runtime` among them."""
    given = config.load_config(ServeConfig, {}).runtime
    return {
        **interpreters.read_interpreters(state_dir / interpreters.INTERPRETERS_FILE),
        **interpreters.parse_interpreters(given),
    }


def _build_environment(version: str, state_dir: Path, python: str, packages: Sequence[str]) -> str:
    """Build the environment of a runtime version; returns its interpreter."""
    if packages:
        wanted, besides = find_compatible_requirements(packages)
        requirements: Sequence[str] = (*packages, *besides)
    elif release := RUNTIME_VERSIONS.get(version):
        wanted, requirements = release.python, release.requirements
    else:
        raise InvalidArgument(
            f"What AI Platform had in {version} is not known here, but in {', '.join(RUNTIME_VERSIONS)}. "
            f"Say what to install: pilotlight runtimes add {version} --create --with scikit-learn==1.3.2"
        )
    base = python or (python_environments.find_python(wanted) if wanted else sys.executable)
    return python_environments.create_environment(
        version, state_dir / "runtimes", base, requirements, print_note
    )
