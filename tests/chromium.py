"""Chromium for tests, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(_PATH is None, reason="there is no Chromium on this machine")


@contextmanager
def running_chromium(flags: Sequence[str] = ()) -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_PATH, args=["--no-sandbox", *flags])
        yield browser
        browser.close()


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled to the side."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def list_serious_issues(page: Page, *rules: str) -> list[str]:
    """What the accessibility checker axe calls serious or critical, in the page with all that it can open.

    By all its rules, or only by these.
    """
    from axe_playwright_python.sync_playwright import Axe

    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    return [
        f"{issue['help']}: {node['html']}"
        for issue in Axe().run(page, options=options).response["violations"]
        if issue["impact"] in ("serious", "critical")
        for node in issue["nodes"]
    ]
