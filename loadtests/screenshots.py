"""Makes the pictures of the console that the docs show: `python -m loadtests.screenshots`.

It starts `pilotlight demo --stay`, or takes the server of one that runs already (`--server`), and visits its
pages with Chromium. Pictures go to docs/images.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_FOLDER = Path(__file__).parents[1] / "docs" / "images"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_COMMAND = "from serving.cli import main; main(['demo', '--stay'])"
_READY, _ADDRESS = "Requests come until", "Watch it: "
# After which numbers and pictures of a page have come.
_SETTLE_MILLISECONDS = 4000
_MAX_BYTES = 110 << 10
_DEMO = "/projects/demo"


@dataclass(frozen=True, slots=True)
class Picture:
    """A page and the name of its file; `click` is the button that is clicked first."""

    name: str
    path: str
    scheme: Literal["light", "dark"] = "light"
    click: str = ""


_PICTURES = (
    Picture("console-overview", "/?project=demo"),
    Picture("console-overview-dark", "/?project=demo", "dark"),
    Picture("console-version", f"{_DEMO}/models/scikit_learn/versions/v1"),
    Picture("console-try", f"{_DEMO}/models/xgboost/versions/v1", click="Predict"),
    Picture("console-job", f"{_DEMO}/jobs/demo_batch"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="the address of a demo that runs: http://127.0.0.1:PORT")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="where the pictures go")
    options = parser.parse_args(arguments)
    if CHROMIUM is None:
        print("There is no Chromium on this machine.", file=sys.stderr)
        return 1
    with contextlib.nullcontext(options.server) if options.server else _run_demo() as server:
        return _take_pictures(server, options.folder)


@contextlib.contextmanager
def _run_demo() -> Generator[str]:
    """The address of a demo, once it has traffic."""
    process = subprocess.Popen([sys.executable, "-c", _COMMAND], stdout=subprocess.PIPE, text=True)
    try:
        address = ""
        for line in process.stdout or ():
            if _ADDRESS in line:
                address = line.partition(_ADDRESS)[2].partition("/console/")[0]
            if _READY in line:
                break
        else:
            raise SystemExit("The demo ended before it had traffic.")
        yield address
    finally:
        # Not SIGINT: what a script starts in the background ignores it, and so does the demo then.
        process.terminate()
        process.wait()


def _take_pictures(server: str, folder: Path) -> int:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    large = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for picture in _PICTURES:
            page = browser.new_page(viewport={"width": 1080, "height": 640}, color_scheme=picture.scheme)
            page.goto(f"{server}/console{picture.path}")
            if picture.click:
                page.get_by_role("button", name=picture.click).click()
            page.wait_for_timeout(_SETTLE_MILLISECONDS)
            file = folder / f"{picture.name}.png"
            page.screenshot(path=file)
            page.close()
            print(f"{file.name}: {file.stat().st_size >> 10} KiB")
            large += [file.name] if file.stat().st_size > _MAX_BYTES else []
        browser.close()
    if large:
        print(f"Larger than {_MAX_BYTES >> 10} KiB: {', '.join(large)}", file=sys.stderr)
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
