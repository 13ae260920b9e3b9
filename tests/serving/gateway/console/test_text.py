"""Texts of others are shown as they are, and do nothing else."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from serving.gateway.console.text import finalize_output, make_visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("bell\x07 escape\x1b[31m", "bell\\x07 escape\\x1b[31m"),
        ("invoice\u202egpj.exe", "invoice\\u202egpj.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\ud800 half", "\\ud800 half"),
        # A joiner is part of many emoji and of Indic scripts.
        ("👩\u200d🚀 ünïcödé שלום", "👩\u200d🚀 ünïcödé שלום"),
    ],
)
def test_what_shows_nothing_or_reorders_is_escaped(text: str, shown: str) -> None:
    assert make_visible(text) == shown


def test_long_texts_are_cut_with_the_rest_counted() -> None:
    assert make_visible("x" * 30, 10) == "x" * 10 + " … (20 more characters)"


def test_markup_of_templates_stays_and_nothing_is_empty() -> None:
    assert finalize_output(Markup("<b>")) == "<b>"
    assert finalize_output(None) == ""
    assert finalize_output(3) == 3
