"""Command lines of programs: what is read plainly is what the library would have read."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving import config
from serving.cli.app import build
from serving.cli.flags import settings_parser
from serving.config import NodeConfig, ServeConfig

COMMANDS: Any = build()


def by_the_library(line: str, command: str) -> dict[str, Any]:
    """What was typed, as the library has it."""
    context = COMMANDS.commands[command].make_context(command, shlex.split(line))
    return {name: value for name, value in context.params.items() if value not in (None, ())}


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("node", ""),
        ("node", "--model-dir ./flowers --port 0"),
        ("node", "--port=9000 --request-timeout=1.5 --cache-dir ~/cache --legacy-model-errors"),
        ("node", "--port 1 --port 2 --no-legacy-model-errors --legacy-model-errors"),
        ("node", "--config=some.yaml --port -1 --host '' --model-dir=a=b"),
        ("serve", "--runtime 1.15=/a --port 1 --runtime=2.1=/b,2.2=/c"),
        ("serve", "--port 8080 --state-dir ~/pilotlight --no-insecure --log-stdout --pilots 600"),
    ],
)
def test_what_is_typed_is_read_the_same_way(command: str, line: str) -> None:
    """Values, spellings, switches, repetitions and the file."""
    typed = settings_parser.parse_settings(
        shlex.split(line), {"node": NodeConfig, "serve": ServeConfig}[command]
    )
    theirs = by_the_library(line, command)
    file = theirs.pop("config", None)

    assert typed == settings_parser.ParsedSettings(theirs, file)
    assert file is None or isinstance(file, Path)


@pytest.mark.parametrize("kind", [NodeConfig, ServeConfig])
def test_every_setting_can_be_typed(kind: type[Any]) -> None:
    """No setting is known to one way alone."""
    command = {NodeConfig: "node", ServeConfig: "serve"}[kind]
    flags = {
        option for one in COMMANDS.commands[command].params for option in (*one.opts, *one.secondary_opts)
    }

    assert all(
        settings_parser.parse_settings([flag], kind) or settings_parser.parse_settings([flag, "1"], kind)
        for flag in flags - {"-h", "--help"}
    )
    assert config.flag_of_setting("port") in flags


@pytest.mark.parametrize(
    "line",
    [
        "--help", "-h", "--port", "--port x", "--port 1.5", "--port=", "--unknown 1", "flowers", "--", "-p 1",
        "--no-port 1", "--legacy-model-errors=yes", "--request-timeout soon", "--model-dir a b",
    ],
)  # fmt: skip
def test_the_rest_is_left_to_the_library(line: str) -> None:
    """Help, mistakes, and what is not settings with their values."""
    assert settings_parser.parse_settings(shlex.split(line), NodeConfig) is None


def test_a_program_starts_without_the_library(tmp_path: Path) -> None:
    """What `pilotlight node` and `pilotlight serve` read their settings with is all that is imported."""
    code = (
        "import sys, contextlib; from serving.cli import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print({'typer', 'pydantic', 'rich', 'serving.cli.app'} & set(sys.modules))"
    )
    for line in (["node", "--model-dir", str(tmp_path), "--port", "0"], ["serve", "--access", "nonsense"]):
        ended = subprocess.run(
            [sys.executable, "-c", code, *line], capture_output=True, text=True, check=True
        )

        assert ended.stdout == "set()\n"
        assert ended.stderr.splitlines()[-1].startswith("ERROR: ")
