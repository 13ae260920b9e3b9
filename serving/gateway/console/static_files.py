"""Style, scripts and pictures of the console, in memory, at addresses that change with their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from starlette.responses import Response

from serving.errors import NotFound

_FOLDER = Path(__file__).parent / "static"
_MEDIA_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Mapping[str, str] = {
    # The address has a digest of all files.
    "cache-control": "public, max-age=31536000, immutable",
    "x-content-type-options": "nosniff",
}


class StaticFiles:
    def __init__(self, folder: Path = _FOLDER) -> None:
        self._files = {
            path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in _MEDIA_TYPES
        }
        digest = hashlib.sha256(b"".join(self._files.values())).hexdigest()[:16]
        self.prefix = f"static/{digest}"

    def respond(self, name: str) -> Response:
        """The file, whatever digest it is asked with. Raises NotFound."""
        content = self._files.get(name)
        if content is None:
            raise NotFound(f"The console has no file {name}.")
        return Response(content, media_type=_MEDIA_TYPES[Path(name).suffix], headers=_HEADERS)
