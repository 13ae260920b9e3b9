"""docs/settings.md is what `make settings` writes, and has all that there is to know of a setting."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest

from serving import config
from serving.cli.flags import settings_reference
from serving.config import ClientConfig, NodeConfig, ServeConfig

PAGE = Path(__file__).parents[4] / "docs" / "settings.md"


def test_the_page_is_what_the_settings_say() -> None:
    """After a change in serving/config.py, `make settings` writes the page anew."""
    assert PAGE.read_text() == settings_reference.render_page()


@pytest.mark.parametrize("kind", [ServeConfig, NodeConfig, ClientConfig])
def test_each_setting_is_on_the_page(kind: type[Any]) -> None:
    """With flag and variable, whichever class defines it."""
    page = PAGE.read_text()
    names = [field.name for field in dataclasses.fields(kind)]

    assert [
        name
        for name in names
        if f"| `{config.flag_of_setting(name)}`<br>`PILOTLIGHT_{name.upper()}` |" not in page
    ] == []


@pytest.mark.parametrize("kind", [ServeConfig, NodeConfig])
def test_each_number_has_a_unit(kind: type[Any]) -> None:
    """A port is the only number that counts nothing."""
    hints = typing.get_type_hints(kind)
    numbers = [field for field in dataclasses.fields(kind) if hints[field.name] in (int, float)]

    assert [field.name for field in numbers if not field.metadata["unit"]] == ["port"]
