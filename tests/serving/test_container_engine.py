from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.artifacts.trusted_sources import TrustedSources
from serving.container_engine import expand_references, find_engine, make_run_config
from serving.errors import FailedPrecondition, InvalidArgument
from serving.gateway.catalog.checks import check_version
from serving.names import VersionName
from serving.resources import ContainerPort, ContainerSpec, RouteMap, Version

NAME = VersionName("p", "m", "v")


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("$(A)/$(A)", "1/1"),
        ("$(B)", "$(B)"),
        ("$$(A)", "$(A)"),
        ("$A ${A} $(1)", "$A ${A} $(1)"),
    ],
)
def test_references(text: str, expanded: str) -> None:
    """Those to what is known are replaced, those with two signs escaped, all else stays."""
    assert expand_references(text, {"A": "1"}) == expanded


@pytest.mark.parametrize(
    "spec",
    [
        # Each variable is twice as long as the one before.
        {
            "env": (
                {"name": "V0", "value": "x"},
                *({"name": f"V{n}", "value": f"$(V{n - 1})" * 2} for n in range(1, 99)),
            )
        },
        {"env": ({"name": "A", "value": "x" * 2000},), "args": ("$(A)" * 600,)},
        {"env": ({"name": "A", "value": "x" * 2000},), "command": ("$(A)",) * 600},
    ],
)
def test_references_do_not_grow_beyond_memory(spec: dict[str, Any]) -> None:
    """They are refused when the version is created."""
    version = msgspec.convert({"container": {"image": "i", **spec}}, Version)

    with pytest.raises(InvalidArgument, match="over 1048576 characters"):
        check_version(version, NAME)


@pytest.mark.parametrize(
    "image",
    [
        "i",
        "sha256:0123456789ab",
        "docker:24",
        "localhost/a__b",
        "gcr.io/team/server:v1.2_3",
        "Registry.example.com:5000/a-b/c@sha256:" + "0" * 64,
        "[::1]:5000/a:1@sha256:" + "0" * 64,
    ],
)
def test_names_of_images(image: str) -> None:
    """As registries and engines know them."""
    check_version(Version(container=ContainerSpec(image=image)), NAME)


@pytest.mark.parametrize(
    "image",
    [
        *(
            "",
            "-v",
            "--privileged",
            " i",
            "i ",
            "i\n",
            "a b",
            "a//b",
            "/a",
            "a/",
            "../a",
            "gcr.io/team/../other/a",
        ),
        *(
            "dir:/etc",
            "dir:models",
            "oci:a",
            "docker-archive:/srv/a.tar",
            "oci-archive:a.tar",
            "docker://gcr.io/a",
        ),
        *("containers-storage:[/srv]a", "i;id", "i$(id)", "ï", "a" * 513),
    ],
)
def test_what_is_no_name_of_an_image(image: str) -> None:
    """Neither a flag, nor a file of this machine, nor a way out of a trusted place."""
    with pytest.raises(InvalidArgument, match="Name the image"):
        check_version(Version(container=ContainerSpec(image=image)), NAME)


def test_the_command_line() -> None:
    """A command takes the place of the entrypoint; its further words go before the arguments."""
    spec = ContainerSpec(
        image="i",
        command=("serve", "--fast"),
        args=("$(AIP_HTTP_PORT)",),
        ports=(ContainerPort(container_port=90),),
    )
    version = Version(container=spec, deployment_uri="gs://b/m", routes=RouteMap(health="/h"))
    container = make_run_config(version, NAME, "/bin/docker", "sha256:1", memory_bytes=1 << 20)
    command = container.build_run_command("name", Path("/model"))

    assert command[:6] == ["/bin/docker", "run", "--rm", "--name", "name", "--pull"]
    assert command[-5:] == ["--entrypoint", "serve", "sha256:1", "--fast", "90"]
    assert command[command.index("--memory") + 1] == str(1 << 20)
    assert command[command.index("--publish") + 1] == "127.0.0.1::90"
    assert command[command.index("--volume") + 1] == "/model:/mnt/models:ro"
    assert (container.health, container.predict) == ("/h", "/v1/models/m/versions/v:predict")


def test_an_image_as_it_is() -> None:
    """Without a command, arguments, files or limits there are no flags for them."""
    container = make_run_config(Version(container=ContainerSpec(image="i")), NAME, "docker", "i")
    command = container.build_run_command("name", Path("/model"))

    assert command[-1] == "i"
    assert not {"--entrypoint", "--memory", "--volume"} & set(command)
    assert "AIP_STORAGE_URI=" in command


def test_an_engine_that_is_not_there() -> None:
    """The setting that names it is named."""
    with pytest.raises(InvalidArgument, match="container_engine names 'no-such-engine'"):
        find_engine("no-such-engine")
    assert find_engine("") == ""


@pytest.mark.parametrize(
    ("image", "trusted"),
    [
        ("registry.example.com/team/server:1", True),
        ("registry.example.com/team@sha256:0", True),
        ("registry.example.com/team-evil/server:1", False),
        ("server", False),
    ],
)
def test_trusted_images(image: str, trusted: bool) -> None:
    """Where sources are trusted by name, images are too."""
    sources = TrustedSources.from_setting("gs://bucket, docker://registry.example.com/team/")

    if trusted:
        sources.check_image("version.container.image", image)
    else:
        with pytest.raises(FailedPrecondition, match="no image that this server trusts"):
            sources.check_image("version.container.image", image)
    TrustedSources.from_setting("").check_image("version.container.image", image)
