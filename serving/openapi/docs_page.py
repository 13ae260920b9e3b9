"""The page on which predictions are tried: one file, which loads nothing but this server's document."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

_PAGE_FILE = "docs.html"


@lru_cache
def read_page() -> bytes:
    return resources.files(__package__).joinpath(_PAGE_FILE).read_bytes()


@lru_cache
def page_headers() -> Mapping[str, str]:
    """Headers of the page: a browser must run no other script, and connect to no other server."""
    script, style = (_hash_tag_content(tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _hash_tag_content(tag: str) -> str:
    """Return the hash of what stands between two tags, as a content security policy has it."""
    found = re.search(rf"<{tag}>(.*?)</{tag}>".encode(), read_page(), re.DOTALL)
    inside = found[1] if found else b""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside).digest()).decode()}'"
