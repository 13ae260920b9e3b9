"""`pilotlight runtimes`: which interpreters compute models of old runtime versions."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from serving import config, interpreters
from serving.cli.lines import note
from serving.cli.tokens import StateFolder
from serving.config import ServeConfig
from serving.errors import InvalidArgument, LoadFailed
from serving.predictor import probe
from serving.predictor.releases import RELEASES

VersionArgument = Annotated[
    str, typer.Argument(metavar="VERSION", help="The runtime version: 1.15, 2.11.", show_default=False)
]


def add(
    version: VersionArgument,
    folder: StateFolder,
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
) -> None:
    """Have models with this runtimeVersion computed by another interpreter.

    A running server notices. Versions that are deployed already keep the interpreter they have.

    Example: pilotlight runtimes add 1.15 --python /opt/py37/bin/python

    Example: pilotlight runtimes add 2.11 --create
    """
    interpreters.checked_version(version)
    if not (python or create):
        raise typer.BadParameter("Say which interpreter: --python PATH, or --create to build one.")
    path = _created(version, folder.path, python) if create else interpreters.checked_python(python)
    versions = probe(path)
    file = folder.path / interpreters.FILE
    interpreters.write(file, {**interpreters.read(file), version: path})
    note(f"Runtime version {version} is computed by {path}: {_listed(versions)}.")


def list_(folder: StateFolder) -> None:
    """Show the interpreters of all runtime versions, and the libraries that they have.

    Example: pilotlight runtimes list
    """
    found = known(folder.path)
    if not found:
        note(
            "None: all models are computed by the server's own libraries. `pilotlight runtimes add` adds one."
        )
    for version, path in sorted(found.items()):
        try:
            said = _listed(probe(path))
        except LoadFailed as error:
            said = error.message
        print(f"{version:<8}  {path}  {said}")


def remove(version: VersionArgument, folder: StateFolder) -> None:
    """Have models with this runtimeVersion computed by the server's own libraries again.

    An environment that was built for it stays as long as versions use it: delete its folder yourself.

    Example: pilotlight runtimes remove 1.15
    """
    file = folder.path / interpreters.FILE
    left = interpreters.read(file)
    if left.pop(version, None) is None:
        raise InvalidArgument(f"There is no interpreter for the runtime version {version} in {file}.")
    interpreters.write(file, left)
    note(f"Runtime version {version} is computed by the server's own libraries.")


def known(state_dir: Path) -> Mapping[str, str]:
    """The interpreters by runtime version, those of the setting `runtime` among them."""
    given = config.load(ServeConfig, {}).runtime
    return {**interpreters.read(state_dir / interpreters.FILE), **interpreters.parse(given)}


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


# ---- building one


def _created(version: str, state_dir: Path, python: str) -> str:
    """Build the environment of a runtime version; returns its interpreter."""
    release = RELEASES.get(version)
    if release is None:
        raise InvalidArgument(
            f"What AI Platform had in {version} is not known here, but in {', '.join(RELEASES)}. Build an environment "
            f"yourself and name it: pilotlight runtimes add {version} --python PATH."
        )
    base = interpreters.checked_python(python) if python else _found(release.python)
    target = state_dir / "runtimes" / version
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = release.requirements
    note(f"Building {target} from {base} with {', '.join(wanted)} ...")
    try:
        for command in _commands(base, target, wanted):
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise InvalidArgument(
            f"The environment could not be built: {error}. Is a package index in reach?"
        ) from error
    return str(target / "bin" / "python")


def _commands(base: str, target: Path, wanted: Sequence[str]) -> Sequence[Sequence[str]]:
    """With uv where it is there, which takes seconds, else with venv and pip."""
    python = str(target / "bin" / "python")
    if uv := shutil.which("uv"):
        return (
            (uv, "venv", "--quiet", "--seed", "--python", base, str(target)),
            (uv, "pip", "install", "--quiet", "--python", python, *wanted),
        )
    return (
        (base, "-m", "venv", str(target)),
        (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "pip"),
        (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted),
    )


def _found(python: str) -> str:
    """An interpreter of this version: on the path, or one that pyenv keeps."""
    if path := shutil.which(f"python{python}"):
        return path
    kept = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{python}.*/bin/python"))
    if kept:
        return str(kept[-1])
    raise InvalidArgument(
        f"There is no Python {python} here, which this runtime version had. Install it (for instance `pyenv install "
        f"{python}` or `uv python install {python}`), and name it with --python."
    )
