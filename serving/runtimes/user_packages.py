"""Folders with installed user packages, as places to import from."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from serving.frameworks import load_frameworks

# Code of these does with its input what its documentation says; everything else is the user's.
KNOWN_PACKAGES = frozenset(
    chain(
        ("numpy", "scipy", "pandas", "joblib", "serving"),
        chain.from_iterable(one.packages for one in load_frameworks().values() if one.has_methods),
        sys.stdlib_module_names,
    )
)


def add_to_import_path(packages: Iterable[Path]) -> None:
    """Let user packages be imported, after everything the server itself has, so they cannot shadow it."""
    for folder in map(str, packages):
        if folder not in sys.path:
            sys.path.append(folder)
            # Of all that Python remembers of folders, only what it may know of this one can be out of date.
            sys.path_importer_cache.pop(folder, None)
