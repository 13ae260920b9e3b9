"""Runs cells of a notebook without Jupyter: Python, `!commands`, the few magics that Google's samples use.

A program for interpreters from 3.6 on, with nothing of ours. It reads a JSON list of sources from its input.
"""

import json
import os
import re
import subprocess
import sys
import traceback

NAMESPACE = {"__name__": "__main__", "display": print}
CONTINUED = re.compile(r"\\[ \t]*\n")
BRACES = re.compile(r"\{(\w+)\}")
DOLLAR = re.compile(r"\$(\w+)")
COMMAND = re.compile(r"^(\s*)(?:(\w+)\s*=\s*)?!\s*(.*)$")


def run_command(command, lines):
    """As IPython does it: names of Python in braces or after a dollar, what is none is left to the shell."""

    def value(match):
        name = match.group(1)
        return str(NAMESPACE[name]) if name in NAMESPACE else match.group(0)

    command = DOLLAR.sub(value, BRACES.sub(value, command))
    print("!", command, flush=True)
    # As in Jupyter, a command that fails ends nothing: the log of the commands shows it.
    if not lines:
        subprocess.run(["bash", "-c", command], check=False, stdin=subprocess.DEVNULL)
        return None
    done = subprocess.run(
        ["bash", "-c", command], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    return done.stdout.decode().splitlines()


def translate(source):
    """The Python of a cell."""
    if source.startswith("%%writefile"):
        first, _, text = source.partition("\n")
        return f"open({first.split()[1]!r}, 'w').write({text!r})"
    if "%%bash" in source:
        return "run_command({!r}, False)".format(source.partition("%%bash")[2].lstrip("\n"))
    text = CONTINUED.sub(" ", source) if "!" in source else source
    return "\n".join(translate_line(line) for line in text.splitlines())


def translate_line(line):
    """The Python of a line."""
    words = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    command = COMMAND.match(line)
    if command:
        taken = command.group(2) + " = " if command.group(2) else ""
        return "{}{}run_command({!r}, {})".format(indent, taken, command.group(3), bool(command.group(2)))
    if words.startswith("%env"):
        _, name, value = words.split(None, 2)
        return "{}os.environ[{!r}] = {!r}".format(indent, name, value)
    if words.startswith("%cd"):
        return "{}os.chdir({!r})".format(indent, words.split()[1])
    return indent + "pass" if words.startswith("%") else line


def main():
    NAMESPACE.update(run_command=run_command, os=os)
    sys.path.insert(0, "")  # the folder that a cell changed to, as in Jupyter
    for number, source in enumerate(json.load(sys.stdin)):
        try:
            exec(compile(translate(source), f"cell {number}", "exec"), NAMESPACE)
        except BaseException:
            traceback.print_exc()
            sys.exit(f"This cell failed:\n{source}")


if __name__ == "__main__":
    main()
