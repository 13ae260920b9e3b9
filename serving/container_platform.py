"""Settings of a standalone node that container platforms make through the environment.

Vertex AI has its `AIP_` variables, Cloud Run has `PORT`, and KServe mounts the model at a fixed path. All of
them connect to a container from outside of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MODEL_MOUNT = Path("/mnt/models")
"""Where KServe's storage initializer puts a model."""

ALL_INTERFACES = "0.0.0.0"  # noqa: S104  what these platforms ask for: they connect from outside
ANY_HOST = "*"
"""These platforms call a server by names that it cannot know."""

# Set in containers of Kubernetes, which calls them by names of its services.
_KUBERNETES = "KUBERNETES_SERVICE_HOST"

# The variables of each setting; the first one that is set counts.
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "port": ("AIP_HTTP_PORT", "PORT"),
    "health_route": ("AIP_HEALTH_ROUTE",),
    "predict_route": ("AIP_PREDICT_ROUTE",),
    "model_dir": ("AIP_STORAGE_URI",),
}


@dataclass(frozen=True, slots=True)
class PlatformSettings:
    """Values of settings by name, each with its source; none outside of containers."""

    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """The sources, for messages."""
        return ", ".join(dict.fromkeys(source for source, _ in self.settings.values()))


def read_platform_settings(
    environment: Mapping[str, str], already_set: Iterable[str], mount: Path = MODEL_MOUNT
) -> PlatformSettings:
    """The platform's settings, except those in `already_set`.

    An empty variable counts as unset, as in Vertex AI. If there are any, the node also listens on every
    interface and accepts any host.
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
