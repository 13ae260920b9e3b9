"""Finds every file of Google's two sample repositories that deploys a model or asks one for predictions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORIES = ("cloudml-samples", "ai-platform-samples")
_SUFFIXES = {"", ".py", ".sh", ".ipynb", ".md", ".yaml", ".yml"}
_CONTINUED = re.compile(r"\\\s*\n\s*")
_USES = re.compile(
    r"""gcloud\b[^\n|;#`]*?\b(?:ai-platform|ml-engine|ml)\s[^\n|;#`]*?
          \b(?:models|versions|predict|explain|submit\s+prediction)\b
      | \.projects\(\)\.(?:predict|explain|models|jobs\(\)\.create)
      | \bpredict_json\(
      | ml\.googleapis\.com/v1[^\s]*(?:/models|:predict)
      | from_saved_model\( | tables_client\.(?:predict|batch_predict|deploy_model)
      | \.(?:batch_predict|online_predict)\( | set_ai_platform_model\(
    """,
    re.VERBOSE,
)


def find_uses(root: Path) -> dict[str, list[str]]:
    """The lines that deploy or predict, by the path of their file, which begins with its repository."""
    found = {
        path.relative_to(root).as_posix(): list(_uses(path))
        for repository in REPOSITORIES
        for path in sorted((root / repository).rglob("*"))
        if path.suffix in _SUFFIXES and path.is_file() and ".git" not in path.parts
    }
    return {path: lines for path, lines in found.items() if lines}


def read_cells(notebook: Path) -> list[str]:
    """The source of each code cell of a notebook, "" for each of another kind."""
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) if cell["cell_type"] == "code" else "" for cell in cells]


def _uses(path: Path) -> Iterator[str]:
    try:
        texts = read_cells(path) if path.suffix == ".ipynb" else [path.read_text()]
    except UnicodeDecodeError:
        return
    for text in texts:
        for line in _CONTINUED.sub(" ", text).splitlines():
            if _USES.search(line):
                yield line.strip()
