"""The command as a whole: its help, its start, its way of asking and of showing progress."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from serving.cli.app import build
from tests.bounds import HANG_SECONDS
from tests.server import Server
from tests.serving.cli.conftest import Run

_MAIN = "from serving.cli import main; main()"
# Nothing of these is needed to know what a command line means.
_HEAVY = ("numpy", "httpx", "yaml", "rich", "pydantic", "uvicorn", "starlette", "msgspec", "sqlalchemy")


def commands(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, with its path."""
    for name, command in found.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def groups(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of a group, and of every group below it."""
    yield path
    for name, command in found.commands.items():
        if hasattr(command, "commands"):
            yield from groups(command, (*path, name))


COMMANDS = dict(commands(build()))
GROUPS = list(groups(build()))


@pytest.mark.parametrize("path", [*COMMANDS, *GROUPS], ids=" ".join)
def test_help_is_shown_as_it_was_written(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever signs a help text holds, `--help` prints them and ends with 0."""
    app = build()
    command: Any = app
    for name in path:
        command = command.commands[name]

    with pytest.raises(SystemExit) as exited:
        app([*path, "--help"], standalone_mode=True)

    shown = capsys.readouterr().out
    assert exited.value.code == 0
    assert f"{' '.join(path)} [OPTIONS]" in " ".join(shown.split())
    # "\b" stands above lines that are not wrapped.
    assert "".join(command.help.replace("\b", "").split()) in "".join(shown.split())
    told = [one for one in command.params if not getattr(one, "hidden", False)]
    assert all(option in shown for one in told for option in one.opts if option.startswith("--"))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_teaches(path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command says in a line what it does, describes each flag, and has an example that is right."""
    command = COMMANDS[path]
    title, *_, example = command.help.split("\n\n")
    start = f"Example: pilotlight {' '.join(path)}"

    assert "\n" not in title
    assert title.endswith(".")
    assert all(parameter.help for parameter in command.params if parameter.name != "help")
    assert example.startswith(start)
    (tmp_path / "instances.jsonl").write_text("[1]\n")
    (tmp_path / "study.yaml").touch()
    monkeypatch.chdir(tmp_path)
    command.make_context(path[-1], shlex.split(example.removeprefix(start)))


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    """Building the command loads no library that one of its commands alone needs."""
    code = (
        f"import sys; from serving.cli.app import build; build(); print(set({_HEAVY!r}) & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout == "set()\n"


def test_usage(offline: Run) -> None:
    """Nothing typed shows the help; something unknown is wrong usage."""
    assert "versions" in offline("--help").out
    assert offline("--help").code == 0
    assert offline("models").code == 2
    assert offline("models create").code == 2
    assert offline("nonsense").code == 2


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, line: str, server: Server) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, *shlex.split(line)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**os.environ, "PILOTLIGHT_SERVER": server.url, "TERM": "xterm"},
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Read until a text appears."""
        while text not in self.seen:
            assert self._read(), self.seen

    def answer(self, text: str) -> None:
        """Type a line."""
        os.write(self._master, f"{text}\n".encode())

    def end(self) -> int:
        """Read all the rest; the exit code."""
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(timeout=HANG_SECONDS)

    def _read(self) -> bool:
        """Read what is there; False at the end."""
        assert select.select([self._master], [], [], 60)[0], self.seen
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how a terminal's end looks
            return False
        self.seen += data.decode()
        return bool(data)


def test_deleting_asks_on_a_terminal(pilotlight: Run, server: Server) -> None:
    """No is no, yes is yes, --quiet does not ask, and a script is never asked."""
    pilotlight("models create asked")
    refused = Terminal("models delete asked", server)
    refused.wait_for("This will delete model asked. Continue?")
    refused.answer("n")
    assert refused.end() == 1
    assert pilotlight("models describe asked").code == 0

    agreed = Terminal("models delete asked", server)
    agreed.wait_for("Continue?")
    agreed.answer("")
    assert agreed.end() == 0
    assert "Deleted model asked." in agreed.seen

    pilotlight("models create asked")
    quiet = Terminal("models delete asked --quiet", server)
    assert quiet.end() == 0
    assert "Continue?" not in quiet.seen


def test_progress_on_a_terminal(pilotlight: Run, server: Server, models_dir: Path) -> None:
    """A live line shows the phase and the time; it is gone at the end."""
    pilotlight("models create watched")
    terminal = Terminal(f"versions create v1 --model watched --origin {models_dir / 'forest'}", server)
    assert terminal.end() == 0

    assert "Creating version v1 of model watched" in terminal.seen
    # A phase that is over between two questions is not seen.
    assert "FETCHING" in terminal.seen or "LOADING" in terminal.seen
    assert "0:00:" in terminal.seen
    assert "Created version v1 of model watched in" in terminal.seen.splitlines()[-1]


def test_the_version(offline: Run) -> None:
    """That of what is installed."""
    result = offline("--version")
    assert (result.code, result.out) == (0, f"pilotlight {metadata.version('pilotlight')}\n")
    assert "--version" in offline("--help").out


def test_help_is_prompt() -> None:
    """Help comes at once."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", _MAIN, "--help"], capture_output=True, check=True)

    assert time.monotonic() - start < 15  # 0.4 s on an idle machine
