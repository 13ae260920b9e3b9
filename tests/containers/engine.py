"""Stands in for the command of docker or podman: what it is told of containers it does with processes.

    python engine.py STATE image inspect|pull|run|port|inspect|rm ...

An image is a file of STATE/images (of STATE/registry before it is pulled): {"name", "id", "entrypoint",
"command"}. A container is a process in a session of its own, which outlives this command as those of a daemon
do. There are no namespaces: in place of the port that is published it is told a free one, in place of a mount
the folder itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn


def fail(text: str) -> NoReturn:
    """End as the command does that cannot."""
    print(text, file=sys.stderr)
    sys.exit(125)


def find_image(folder: Path, name: str) -> Path | None:
    """The file of an image, by its name or id."""
    for file in folder.iterdir():
        image = json.loads(file.read_text())
        if name in (image["name"], image["id"]):
            return file
    return None


def run(state: Path, words: list[str]) -> int:
    """Run a container until it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rm", action="store_true")
    for flag in ("--name", "--pull", "--publish", "--network", "--security-opt", "--memory", "--entrypoint"):
        parser.add_argument(flag)
    parser.add_argument("--cpu-shares", type=int)
    parser.add_argument("--oom-score-adj", type=int)
    parser.add_argument("--volume", action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    found = find_image(state / "images", given.image)
    if found is None or given.pull != "never":
        fail(f"Unable to find image '{given.image}' locally")
    image = json.loads(found.read_text())
    environment = dict(entry.split("=", 1) for entry in given.env)
    published = publish(given.publish, environment) if given.publish else 0
    assert published or given.network == "host"
    for volume in given.volume:
        folder, mount, *mode = volume.split(":")
        if folder != mount:
            assert (environment["AIP_STORAGE_URI"], mode) == (mount, ["ro"])
            environment["AIP_STORAGE_URI"] = folder
    start = [given.entrypoint] if given.entrypoint else image["entrypoint"]
    command = [*start, *(given.words or ([] if given.entrypoint else image["command"]))]
    environment["PATH"] = os.environ["PATH"]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    file = state / "containers" / f"{given.name}.json"
    file.write_text(json.dumps({"pid": process.pid, "port": published, "command": sys.argv[2:]}))
    code = process.wait()
    file.unlink(missing_ok=True)
    return code if code >= 0 else 128 - code


def publish(ports: str, environment: dict[str, str]) -> int:
    """Have the program listen at a free port."""
    host, _, port = ports.partition("::")
    assert host == "127.0.0.1"
    with socket.create_server((host, 0)) as free:
        published: int = free.getsockname()[1]
    assert environment["AIP_HTTP_PORT"] == port
    environment["AIP_HTTP_PORT"] = str(published)
    return published


def main() -> int:
    """Do what the words say."""
    state, words = Path(sys.argv[1]), sys.argv[2:]
    match words:
        case ["image", "inspect", "--format", "{{.Id}}", name]:
            found = find_image(state / "images", name)
            if found is None:
                fail(f"Error: No such image: {name}")
            print(json.loads(found.read_text())["id"])
        case ["pull", name]:
            found = find_image(state / "registry", name)
            if found is None:
                fail(f"Error response from daemon: manifest for {name} not found: manifest unknown")
            found.rename(state / "images" / found.name)
        case ["run", *rest]:
            return run(state, rest)
        case ["port", name, _]:
            print(f"127.0.0.1:{read_container(state, name)['port']}")
        case ["inspect", "--format", "{{.State.Pid}}", name]:
            print(read_container(state, name)["pid"])
        case ["kill", "--signal", "TERM", name]:
            os.killpg(read_container(state, name)["pid"], signal.SIGTERM)
        case ["kill", name]:
            os.killpg(read_container(state, name)["pid"], signal.SIGKILL)
        case ["rm", "--force", name]:
            with contextlib.suppress(ProcessLookupError):  # it has been killed before
                os.killpg(read_container(state, name)["pid"], signal.SIGKILL)
            (state / "containers" / f"{name}.json").unlink(missing_ok=True)
            print(name)
        case _:
            fail(f"unknown command: {words}")
    return 0


def read_container(state: Path, name: str) -> dict[str, Any]:
    """What is known of a container."""
    try:
        found: dict[str, Any] = json.loads((state / "containers" / f"{name}.json").read_text())
    except FileNotFoundError:
        fail(f"Error response from daemon: No such container: {name}")
    return found


if __name__ == "__main__":
    sys.exit(main())
