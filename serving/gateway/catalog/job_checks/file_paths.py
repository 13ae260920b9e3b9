"""What the files and folders of all kinds of jobs may be called."""

from __future__ import annotations

from urllib.parse import unquote


def find_path_problem(place: str) -> str:
    """What is wrong with a text that should be gs://BUCKET/PATH or an absolute path; "" if it is one."""
    if "\0" in unquote(place):
        return f"{place!r} cannot hold a NUL character."
    scheme, separator, rest = place.partition("://")
    if separator and scheme not in {"gs", "file"}:
        return f"Cannot use {scheme}:// ({place!r}); give gs://BUCKET/PATH or an absolute path."
    if separator and scheme == "gs":
        return "" if rest.split("/")[0] else f"{place!r} names no bucket; give gs://BUCKET/PATH."
    if not (rest if separator else place).startswith("/"):
        return f"{place!r} is neither gs://BUCKET/PATH nor an absolute path."
    return ""
