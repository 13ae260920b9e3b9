from __future__ import annotations

import pytest

from serving.cli.command_output import CommandOutput
from serving.cli.console import print_error, print_note
from serving.cli.formats.projection import OutputFormat
from serving.logs.formatters import escape_control_characters

# Clears the screen, begins a line, sets a colour by one byte, and turns what follows around.
EVIL = "a\x1b[2J\r\nv2  READY\x9b31m\u202eb"
HARMLESS = r"a\x1b[2J\r\nv2  READY\x9b31m\u202eb"


def test_what_others_wrote_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A table has a line for each resource, whatever is in it; so have notes and errors."""
    output = CommandOutput()
    output.show_list([{"name": EVIL}], {"NAME": lambda row: row["name"]})
    output.show_predictions({"predictions": [{"kind": EVIL}]})
    output.show_predictions({"predictions": [EVIL]})
    print_note(f"one\n{EVIL[:5]}")
    print_error(EVIL[:5])

    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["NAME", HARMLESS, "KIND", HARMLESS, repr([EVIL])]
    assert shown.err.splitlines() == ["one", r"a\x1b[2J", r"ERROR: a\x1b[2J"]


def test_a_format_is_as_the_server_sent_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read it, and JSON has escapes of its own."""
    CommandOutput(format=OutputFormat("json")).show("\x1b")
    assert capsys.readouterr().out == '"\\u001b"\n'


@pytest.mark.parametrize("text", ["", "plain", "Umläute, 漢字 and 🙂", "a\ttab"])
def test_what_is_text_stays(text: str) -> None:
    """In any language."""
    assert escape_control_characters(text) == text
