"""A stand-in for docker: where its command is, which images it has, and what it runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers import engine as engine_module
from tests.containers import program

IMAGE = "registry.example.com/echo:1"


@dataclass(frozen=True)
class Engine:
    """The stand-in: its command, its images and what it runs."""

    folder: Path

    @property
    def command(self) -> str:
        return str(self.folder / "docker")

    @classmethod
    def make(cls, folder: Path) -> Engine:
        """An engine with an image that can be pulled, and one that ends at once."""
        for name in ("images", "registry", "containers"):
            (folder / name).mkdir()
        command = folder / "docker"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {engine_module.__file__} {folder} "$@"\n')
        command.chmod(0o755)
        made = cls(folder)
        made.add("registry/echo.json", IMAGE, [sys.executable, program.__file__], ["by", "default"])
        made.add("images/broken.json", "broken", ["/bin/sh", "-c", "echo no model here >&2; exit 7"], [])
        return made

    def add(self, file: str, name: str, entrypoint: list[str], command: list[str]) -> None:
        """An image."""
        image = {"name": name, "id": f"sha256:{len(name)}", "entrypoint": entrypoint, "command": command}
        (self.folder / file).write_text(json.dumps(image))

    @property
    def containers(self) -> list[dict[str, Any]]:
        """Those that run."""
        found = []
        for file in (self.folder / "containers").glob("*.json"):
            try:
                found.append(json.loads(file.read_text()))
            except (FileNotFoundError, ValueError):  # it goes, or comes, this moment
                continue
        return found
