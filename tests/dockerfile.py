"""Dockerfiles without a container engine: reads them, and carries out their steps in a folder.

    python -m tests.dockerfile serving/containers/Dockerfile.sklearn build/container

carries them out and starts what the container would run, with this process's environment. In place of the
base image is a copy of this Python without its packages, which must be the one that the file asks for, and
the rest of the machine. Below the working directory of the file, paths are moved into the folder; nothing
else is, so that steps must keep to it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
_KNOWN = frozenset(("FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "CMD", "ARG"))
_VARIABLE = re.compile(r"\$(\w+)")


@dataclass(frozen=True)
class Step:
    """One instruction; `text` is all that follows its word, in one line."""

    word: str
    text: str

    @property
    def words(self) -> list[str]:
        """The text as a shell would take it apart."""
        return shlex.split(self.text)


def read(text: str) -> list[Step]:
    """The steps of a Dockerfile. Raises ValueError for an instruction that cannot be carried out here."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    steps = []
    for line in lines.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word and word not in _KNOWN:
            raise ValueError(f"{word} is none of {', '.join(sorted(_KNOWN))}")
        if word:
            steps.append(Step(word, rest.strip()))
    return steps


@dataclass
class Image:
    """What the steps of a file have left: a folder, and how its process is to be started."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    ports: tuple[int, ...] = ()
    command: Sequence[str] = ()

    def start(self, environment: Mapping[str, str], **details: object) -> subprocess.Popen[str]:
        """The container's process, as its user where this process may choose one."""
        identity = {}
        if os.geteuid() == 0:
            user, _, group = self.user.partition(":")
            identity = {"user": int(user), "group": int(group), "extra_groups": ()}
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            self.command,
            cwd="/",
            env={**self.environment, "HOME": "/", **environment},
            stdout=subprocess.PIPE,
            text=True,
            **identity,
            **details,
        )


def build(steps: Sequence[Step], folder: Path, context: Path = ROOT) -> Image:
    """Carry the steps out. Raises CalledProcessError for one that fails."""
    home = next(step.text for step in steps if step.word == "WORKDIR")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    base = _base(folder / "base")
    image = Image(folder)
    for step in (Step(step.word, step.text.replace(home, str(folder))) for step in steps):
        print(f"{step.word} {step.text}", file=sys.stderr, flush=True)
        match step.word:
            case "FROM":
                _check(step.words[0])
                image.environment = {
                    "PATH": f"{base}/bin:/usr/local/bin:/usr/bin:/bin",
                    "LD_LIBRARY_PATH": f"{base}/lib",
                }
            case "COPY" if "--from=build" not in step.words:
                _copy(step.words, context, folder)
            case "RUN":
                # The machine's settings for pip stand for those of whoever builds the image.
                settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
                variables = {**settings, **image.environment, "HOME": str(Path.home())}
                subprocess.run(["/bin/sh", "-euc", step.text], check=True, cwd=folder, env=variables)
            case "ENV":
                for name, value in _assignments(step, image.environment):
                    image.environment[name] = value
            case "USER":
                image.user = step.text
            case "EXPOSE":
                image.ports = tuple(int(port) for port in step.words)
            case "CMD":
                image.command = json.loads(step.text)
    return image


def _check(image: str) -> None:
    """ValueError if this Python is not that of an image."""
    ours = f"python:{sys.version_info.major}.{sys.version_info.minor}-"
    if not image.startswith(ours):
        raise ValueError(f"the steps are for {image}; this Python would do for {ours}*")


def _base(folder: Path) -> Path:
    """A folder made into a place of a `python` that anybody may run and that has no packages."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ours = Path(sys.base_prefix)
    unwanted = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__")
    shutil.copytree(ours / "lib" / name, folder / "lib" / name, ignore=unwanted)
    (folder / "lib" / name / "site-packages").mkdir()
    for library in (ours / "lib").glob("libpython*.so.*"):
        shutil.copy(library, folder / "lib")
    (folder / "bin").mkdir()
    shutil.copy(ours / "bin" / name, folder / "bin")
    (folder / "bin" / "python").symlink_to(name)
    return folder


def _copy(words: Sequence[str], context: Path, folder: Path) -> None:
    *sources, target = words
    for source in sources:
        place = folder / target / source if len(sources) > 1 or target.endswith("/") else folder / target
        place.parent.mkdir(parents=True, exist_ok=True)
        if (context / source).is_dir():
            shutil.copytree(context / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(context / source, place)


def _assignments(step: Step, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for word in step.words:
        name, _, value = word.partition("=")
        yield name, _VARIABLE.sub(lambda match: known.get(match[1], ""), value)


if __name__ == "__main__":
    image = build(read(Path(sys.argv[1]).read_text()), Path(sys.argv[2]).absolute())
    process = image.start({name: value for name, value in os.environ.items() if name != "PATH"}, stdin=None)
    for line in process.stdout or ():
        print(line, end="", flush=True)
    sys.exit(process.wait())
