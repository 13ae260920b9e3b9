"""Files below a folder in which another process works."""

from __future__ import annotations

import os
from pathlib import Path


def find_files(folder: Path, suffix: str) -> list[Path]:
    """Those with that end of their name. Unlike `rglob`, it goes on when a folder is removed meanwhile."""
    return [
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in sorted(names)
        if name.endswith(suffix)
    ]
