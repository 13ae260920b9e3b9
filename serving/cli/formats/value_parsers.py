"""Parses lists, mappings and choices of flags, as gcloud does.

A list is separated by commas, or by the text between two `^` at its start: `^:^a,b:c` is `a,b` and `c`.
A flag of lists may be given several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import typer

from serving.errors import InvalidArgument

E = TypeVar("E", bound=str)


def parse_list(text: str) -> tuple[str, ...]:
    """`a,b,c` as its parts."""
    delimiter = ","
    if text.startswith("^") and "^" in text[1:]:
        delimiter, _, text = text[1:].partition("^")
        if not delimiter:
            raise typer.BadParameter(f"{text!r}: write the separator between the two ^.")
    return tuple(part.strip() for part in text.split(delimiter) if part.strip())


def parse_lists(texts: Iterable[str]) -> tuple[str, ...]:
    """The parts of all lists of a flag that was given several times."""
    return tuple(item for text in texts for item in parse_list(text))


def parse_pairs(text: str) -> dict[str, str]:
    """`key=value,key=value` as a mapping."""
    entries = [entry.partition("=") for entry in parse_list(text)]
    if wrong := [key for key, separator, _ in entries if not separator or not key]:
        raise typer.BadParameter(f"{wrong[0]!r} is not KEY=VALUE.")
    return {key.strip(): value.strip() for key, _, value in entries}


def merge_pairs(texts: Sequence[str] | None, flag: str) -> dict[str, str] | None:
    """The mapping of a flag that was given several times; None if it was not given.

    Raises BadParameter for a key that is given twice.
    """
    if texts is None:
        return None
    merged: dict[str, str] = {}
    for text in texts:
        try:
            found = parse_pairs(text)
        except typer.BadParameter as error:
            raise typer.BadParameter(error.message, param_hint=flag) from error
        if twice := sorted(merged.keys() & found.keys()):
            raise typer.BadParameter(f"{twice[0]!r} is given several times.", param_hint=flag)
        merged |= found
    return merged


def make_choice_parser(choices: Iterable[E]) -> Callable[[str], E]:
    """A parser of choices that also accepts capitals and underscores, as the API has them."""
    known = {str(choice): choice for choice in choices}

    def parse_choice(text: str) -> E:
        found = known.get(text.lower().replace("_", "-"))
        if found is None:
            raise typer.BadParameter(f"{text!r} is none of {', '.join(known)}.")
        return found

    return parse_choice


def format_choices(choices: Iterable[str]) -> str:
    """The choices as a help text shows them."""
    return f"[{'|'.join(choices)}]"


def with_usage_errors(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser that raises BadParameter in place of InvalidArgument."""

    def parse_or_refuse(text: str) -> Any:
        try:
            return parse(text)
        except InvalidArgument as error:
            raise typer.BadParameter(error.message) from error

    parse_or_refuse.__name__ = parse.__name__
    return parse_or_refuse


def parse_limit(text: str) -> int | None:
    """A number from 1 on; None for `unlimited`."""
    if text == "unlimited":
        return None
    if not text.isdecimal() or not int(text):
        raise typer.BadParameter(f"{text!r} is not a number from 1 on.")
    return int(text)
