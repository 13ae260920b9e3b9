from __future__ import annotations

import base64
import hashlib
import re

from serving.openapi import docs_page


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    """Its policy lets a browser run this script, use this style, and ask this server."""
    text = docs_page.read_page().decode()
    policy = docs_page.page_headers()["content-security-policy"]

    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", text) == ["openapi.json"]
    assert not re.search(
        r"https?://|\bon[a-z]+=|\bstyle=|innerHTML|localStorage|sessionStorage|document.cookie", text
    )
    for tag, directive in {"script": "script-src", "style": "style-src"}.items():
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
