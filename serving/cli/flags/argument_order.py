"""Puts the words of a command line into the order that typer accepts.

gcloud's flags for all commands may stand anywhere: `pilotlight --project p models --format json list`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serving.errors import InvalidArgument

_VALUE_FLAGS = frozenset({
    "--access-token-file", "--account", "--billing-project", "--ca-cert", "--configuration", "--flags-file",
    "--flatten", "--format", "--impersonate-service-account", "--project", "--server", "--token",
    "--trace-token", "--verbosity",
})  # fmt: skip
_SWITCH_FLAGS = frozenset({
    "--log-http", "--no-log-http", "--no-user-output-enabled", "--quiet", "--user-output-enabled", "-q",
})  # fmt: skip
_FLAGS_FILE = "--flags-file"
# Files may name other files.
_MAX_FILES = 20

# The words of commands: a mapping for a group, anything else for a command.
CommandTree = Mapping[str, Any]


def reorder_arguments(words: Sequence[str], tree: CommandTree) -> list[str]:
    """The words with flags that stand before the command moved behind it.

    The flags of a `--flags-file` take its place. Raises InvalidArgument for a file that is wrong.
    """
    words = _expand_flags_files(words)
    path: list[str] = []
    moved: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        flag, equals, _ = word.partition("=")
        if word in _SWITCH_FLAGS or (flag in _VALUE_FLAGS and equals):
            moved.append(word)
        elif word in _VALUE_FLAGS and position + 1 < len(words):
            moved += words[position : position + 2]
            position += 1
        elif word.startswith("-"):
            break
        else:
            path.append(word)
            member = tree.get(word)
            if not isinstance(member, Mapping):
                position += 1
                break
            tree = member
        position += 1
    return [*path, *moved, *words[position:]] if path else list(words)


def _expand_flags_files(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    waiting = list(reversed(words))
    files = 0
    while waiting:
        word = waiting.pop()
        flag, equals, value = word.partition("=")
        if word == "--":
            return [*found, word, *reversed(waiting)]
        if flag != _FLAGS_FILE or not (equals or waiting):
            found.append(word)
            continue
        files += 1
        if files > _MAX_FILES:
            raise InvalidArgument(f"--flags-file names over {_MAX_FILES} files; do they name each other?")
        waiting += reversed(_read_flags_file(Path(value if equals else waiting.pop())))
    return found


def _read_flags_file(file: Path) -> list[str]:
    """The flags that a file maps to values, as words."""
    from serving.cli.flags.yaml_file import read_yaml  # noqa: PLC0415  start-up time

    content = read_yaml(file)
    found: list[str] = []
    for mapping in content if isinstance(content, list) else [content]:
        if not isinstance(mapping, Mapping) or not all(str(flag).startswith("-") for flag in mapping):
            raise InvalidArgument(f"{file} must map flags to values: --project: my-project.")
        for flag, value in mapping.items():
            found += _format_flag(str(flag), value)
    return found


def _format_flag(flag: str, value: Any) -> list[str]:
    if value is None or value is True:
        return [flag]
    if value is False:
        return [f"--no-{flag.removeprefix('--')}"]
    if isinstance(value, Mapping):
        value = ",".join(f"{key}={one}" for key, one in value.items())
    elif isinstance(value, list):
        value = ",".join(map(str, value))
    return [f"{flag}={value}"]
