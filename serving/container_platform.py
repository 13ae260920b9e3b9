"""What platforms that run containers tell a server, as settings of a node.

Vertex AI has its `AIP_` variables, Cloud Run has `PORT`, and KServe puts the model into a folder that is the
same always. All of them reach a container from outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MODEL_MOUNT = Path("/mnt/models")
"""Where KServe's storage initializer puts a model."""

ALL_INTERFACES = "0.0.0.0"  # noqa: S104  what these platforms ask for: they connect from outside
ANY_HOST = "*"
"""Hosts that they call a server by: names that it cannot know."""

# Says that Kubernetes runs the container, and calls it by names of its services.
_KUBERNETES = "KUBERNETES_SERVICE_HOST"

# The variables that say what a setting is; of several, the first that is there.
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "port": ("AIP_HTTP_PORT", "PORT"),
    "health_route": ("AIP_HEALTH_ROUTE",),
    "predict_route": ("AIP_PREDICT_ROUTE",),
    "model_dir": ("AIP_STORAGE_URI",),
}


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """What a platform asks for: settings by name, each with where it says so; none outside of containers."""

    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Where it is said, in words."""
        return ", ".join(dict.fromkeys(source for source, _ in self.settings.values()))


def read_platform_settings(
    environment: Mapping[str, str], already_set: Iterable[str], mount: Path = MODEL_MOUNT
) -> PlatformSettings:
    """What the platform asks for; `chosen` are settings that somebody has chosen: it changes none of them.

    An empty variable says nothing, as Vertex AI has it. If anything is asked for, so is to listen on every
    interface, and to answer to any host.
    """
    taken = frozenset(already_set)
    found = {
        name: (variable, environment[variable])
        for name, variables in _VARIABLES.items()
        for variable in variables[::-1]
        if environment.get(variable)
    }
    if "model_dir" not in found and "model_dir" not in taken and mount.is_dir():
        found["model_dir"] = (str(mount), str(mount))
    if found:
        first = next(iter(found.values()))[0]
        asked = {**found, "host": (first, ALL_INTERFACES), "allowed_hosts": (first, ANY_HOST)}
    else:
        asked = {"allowed_hosts": (_KUBERNETES, ANY_HOST)} if environment.get(_KUBERNETES) else {}
    return PlatformSettings({name: value for name, value in asked.items() if name not in taken})
