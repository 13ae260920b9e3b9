"""Versions and jobs that run in containers: the command lines for an engine (docker, podman).

The environment variables of versions are those of AI Platform's custom containers, which Vertex AI has too.
Source: sections 3.6 and 10 of the AI Platform contract.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from serving.config import environment_without_settings
from serving.container_platform import MODEL_MOUNT
from serving.errors import FailedPrecondition, InvalidArgument, field_error
from serving.names import VersionName
from serving.resources import ContainerSpec, RouteMap, Version

SETTING = "container_engine"
# A program of its own, which outlives whoever has started the container for as long as removing it takes.
SUPERVISOR = Path(__file__).parent / "runtimes" / "container" / "supervisor.py"
DEFAULT_PORT, DEFAULT_ANSWER_BYTES = 8080, 64 << 20
# Variables with the locations of an engine's daemon, settings and images.
_ENGINE_VARIABLES = (
    "HOME", "PATH", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
    "REGISTRY_AUTH_FILE",
)  # fmt: skip
_ENGINE_PREFIXES = ("DOCKER_", "CONTAINER_", "CONTAINERS_")
_REFERENCE = re.compile(r"\$\$\(|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_ERROR_LINES = 4
# Characters of all variables and words of a container. Linux starts no program with many more, and references
# to references grow beyond any memory.
_MAX_TEXT = 1 << 20


NO_ENGINE = (
    f"This server runs no containers. Start it with --{SETTING.replace('_', '-')} docker (or podman, or a "
    f"path): the setting {SETTING} names the program that runs them."
)


class ContainerRunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a version's container is run, without its name and the model's folder.

    `image` is the engine's id of it. `memory_bytes` is the container's limit, 0: none. At most
    `max_answer_bytes` of a response are read. Up to `concurrency` requests are sent to it at a time.
    """

    engine: str
    image: str
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    port: int = DEFAULT_PORT
    health: str = "/"
    predict: str = "/"
    mounts_model: bool = False
    memory_bytes: int = 0
    max_answer_bytes: int = DEFAULT_ANSWER_BYTES
    concurrency: int = 1

    def build_run_command(self, name: str, model_dir: Path) -> list[str]:
        """Runs it in the foreground, published on loopback at a port that the engine picks."""
        command = [self.engine, "run", "--rm", "--name", name, "--pull", "never"]
        command += ["--publish", f"127.0.0.1::{self.port}", "--security-opt", "no-new-privileges"]
        if self.memory_bytes:
            command += ["--memory", str(self.memory_bytes)]
        if self.mounts_model:
            command += ["--volume", f"{model_dir}:{MODEL_MOUNT}:ro"]
        for key, value in self.environment:
            command += ["--env", f"{key}={value}"]
        if self.entrypoint:
            command += ["--entrypoint", self.entrypoint[0]]
        return [*command, self.image, *self.entrypoint[1:], *self.arguments]


def make_run_config(
    version: Version,
    name: VersionName,
    engine: str,
    image: str,
    *,
    memory_bytes: int = 0,
    max_answer_bytes: int = DEFAULT_ANSWER_BYTES,
    concurrency: int = 1,
) -> ContainerRunConfig:
    """The container of a version. Raises InvalidArgument if its expanded references become too long."""
    spec, routes = version.container or ContainerSpec(), version.routes or RouteMap()
    port = spec.ports[0].container_port if spec.ports else DEFAULT_PORT
    # As TensorFlow Serving has them, with bare ids.
    route = f"/v1/models/{name.model}/versions/{name.version}"
    health, predict = routes.health or route, routes.predict or f"{route}:predict"
    accelerator = version.accelerator_config
    environment = {
        "AIP_HTTP_PORT": str(port),
        "AIP_HEALTH_ROUTE": health,
        "AIP_PREDICT_ROUTE": predict,
        "AIP_STORAGE_URI": str(MODEL_MOUNT) if version.deployment_uri else "",
        "AIP_MODEL_NAME": name.model,
        "AIP_VERSION_NAME": name.version,
        "AIP_MODE": "PREDICTION",
        "AIP_MODE_VERSION": "1.0.0",
        "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
        "AIP_MACHINE_TYPE": version.machine_type,
        "AIP_ACCELERATOR_TYPE": accelerator.type if accelerator else "",
        # Projects have no numbers here; a name of a resource takes either.
        "AIP_PROJECT_NUMBER": name.project,
    }
    room = _MAX_TEXT

    def expand_within_limit(text: str) -> str:
        nonlocal room
        found = expand_references(text, environment, room)
        room -= len(found)
        return found

    for variable in spec.env:
        environment[variable.name] = expand_within_limit(variable.value)
    return ContainerRunConfig(
        engine=engine,
        image=image,
        entrypoint=tuple(map(expand_within_limit, spec.command)),
        arguments=tuple(map(expand_within_limit, spec.args)),
        environment=tuple(environment.items()),
        port=port,
        health=health,
        predict=predict,
        mounts_model=bool(version.deployment_uri),
        memory_bytes=memory_bytes,
        max_answer_bytes=max_answer_bytes,
        concurrency=concurrency,
    )


def expand_references(text: str, variables: Mapping[str, str], most: int = _MAX_TEXT) -> str:
    """A text with `$(NAME)` replaced by values; `$$(NAME)` becomes `$(NAME)`, unknown names stay.

    Raises InvalidArgument if the result has more than `most` characters.
    """

    def resolve_reference(match: re.Match[str]) -> str:
        return "$(" if match[1] is None else variables.get(match[1], match[0])

    if (
        len(text) + sum(len(resolve_reference(found)) - len(found[0]) for found in _REFERENCE.finditer(text))
        > most
    ):
        raise field_error(
            InvalidArgument,
            "version.container",
            f"Its variables and words have over {_MAX_TEXT} characters, references replaced.",
        )
    return _REFERENCE.sub(resolve_reference, text)


def find_engine(setting: str) -> str:
    """The path of the program that the setting names, "" for none.

    Raises InvalidArgument if it is missing.
    """
    if not setting:
        return ""
    found = shutil.which(setting)
    if found is None:
        raise InvalidArgument(
            f"The setting {SETTING} names {setting!r}, and there is no such program. Install docker or "
            "podman, or give the path of one."
        )
    return str(Path(found).absolute())


def check_engine(engine: str, version: Version) -> None:
    """Raises FailedPrecondition for a version with a container if no engine is set."""
    if version.container is not None and not engine:
        raise field_error(FailedPrecondition, "version.container", NO_ENGINE)


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the engine's program needs."""
    return {
        name: value
        for name, value in environment.items()
        if name in _ENGINE_VARIABLES or name.startswith(_ENGINE_PREFIXES)
    }


def fetch_image(engine: str, image: str, environment: Mapping[str, str] | None = None) -> str:
    """The id of an image, pulled if it is missing. Raises InvalidArgument with the engine's message.

    `environment` is the engine's, None for our own.
    """
    if environment is None:
        environment = environment_without_settings()
    find_id = ("image", "inspect", "--format", "{{.Id}}", image)
    found = _run_engine(engine, find_id, environment)
    if found.returncode:
        pulled = _run_engine(engine, ("pull", image), environment)
        if pulled.returncode:
            said = _last_lines(pulled.stderr or pulled.stdout)
            raise InvalidArgument(f"The image {image} cannot be had: {said}")
        found = _run_engine(engine, find_id, environment)
    identity = found.stdout.strip()
    if found.returncode or not identity:
        raise InvalidArgument(f"{engine} knows no image {image}: {_last_lines(found.stderr)}")
    return identity


def _run_engine(
    engine: str, words: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            (engine, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment,
        )
    except OSError as error:
        raise InvalidArgument(f"Cannot run {engine} (setting {SETTING}): {error.strerror}.") from error


def _last_lines(text: str) -> str:
    lines: Iterable[str] = filter(None, map(str.strip, text.splitlines()))
    return " ".join(list(lines)[-_ERROR_LINES:]) or "nothing was said"
