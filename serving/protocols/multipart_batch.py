"""Several requests in one body, `multipart/mixed` of `application/http`, as Google's clients send batches.

All of it is parsed before any of it is executed: a body that cannot be parsed is rejected as a whole.
"""

from __future__ import annotations

import http
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message

from serving.errors import InvalidArgument
from serving.http_headers import Headers, strip_parameters

MOST_PARTS = 1000
_MOST_HEADERS = 64
# Headers that a part may have of its own. All others are of connections, proxies and browsers: a part has
# none of these.
_PASSED = frozenset(
    {
        b"accept", b"authorization", b"content-encoding", b"content-type", b"inference-header-content-length",
        b"traceparent", b"user-agent", b"x-http-method-override", b"x-request-id", b"x-request-timeout",
    }
)  # fmt: skip
_REQUEST_LINE = re.compile(
    rb"([A-Z]{1,32}) (?:https?://[^/?#\s]*)?(/[!-\"$-~]*) HTTP/1\.[01]"  # a fragment is no part of it
)
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
_CONTENT_ID = re.compile(rb"[!-~][ -~]{0,255}")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_APIS = ("/v1/", "/v2/")


@dataclass(frozen=True, slots=True)
class BatchPart:
    """One request of a batch. `target` is its path with the query, both as they were sent."""

    number: int
    content_id: bytes
    method: str
    target: bytes
    headers: Headers = field(default_factory=list)
    body: bytes = b""


def parse_boundary(content_type: str) -> bytes:
    """Return the separator of the parts. Raises InvalidArgument if there is none."""
    message = Message()
    message["content-type"] = content_type
    found = message.get_boundary("")
    if strip_parameters(content_type) != "multipart/mixed" or not _BOUNDARY.fullmatch(found):
        raise InvalidArgument("A batch has the type multipart/mixed; boundary=BOUNDARY.")
    return found.encode()


def parse_batch(body: bytes, boundary: bytes) -> Sequence[BatchPart]:
    """Raises InvalidArgument with the number of the part that cannot be parsed."""
    delimiter, body = b"\n--" + boundary, b"\n" + body
    if body.count(delimiter) > MOST_PARTS + 1:
        raise InvalidArgument(f"A batch has at most {MOST_PARTS} parts.")
    _, *found = body.split(delimiter)
    if not found or not found[-1].startswith(b"--"):
        raise InvalidArgument("The batch has no end: its last line must be --BOUNDARY--.")
    if len(found) == 1:
        raise InvalidArgument("The batch has no parts.")
    return [_parse_part(number, part) for number, part in enumerate(found[:-1], 1)]


def _parse_part(number: int, text: bytes) -> BatchPart:
    end, _, rest = text.partition(b"\n")
    if end.strip():
        raise _invalid_part(number, "its boundary is not a line of its own")
    part_headers, request = _split_headers(number, rest.removesuffix(b"\r"))
    if strip_parameters(part_headers.get(b"content-type", b"").decode("latin-1")) != "application/http":
        raise _invalid_part(number, "its Content-Type must be application/http")
    if part_headers.get(b"content-transfer-encoding", b"binary").lower() not in {b"binary", b"7bit", b"8bit"}:
        raise _invalid_part(number, "its Content-Transfer-Encoding must be binary")
    content_id = part_headers.get(b"content-id", b"")
    if content_id and not _CONTENT_ID.fullmatch(content_id):
        raise _invalid_part(number, "its Content-ID cannot be sent back")
    line, _, rest = request.lstrip(b"\r\n").partition(b"\n")
    found = _REQUEST_LINE.fullmatch(line.rstrip(b"\r"))
    if found is None:
        raise _invalid_part(number, "it does not begin with METHOD /PATH HTTP/1.1")
    headers, body = _split_headers(number, rest)
    if not found[2].decode().startswith(_APIS):
        raise _invalid_part(number, f"it is for none of {' and '.join(_APIS)}")
    return BatchPart(
        number=number,
        content_id=content_id,
        method=found[1].decode(),
        target=found[2],
        headers=[(name, value) for name, value in headers.items() if name in _PASSED],
        body=_trim_body(number, body, headers.get(b"content-length")),
    )


def _split_headers(number: int, text: bytes) -> tuple[Mapping[bytes, bytes], bytes]:
    """Return the headers up to an empty line, and the rest."""
    headers: dict[bytes, bytes] = {}
    position = 0
    while position < len(text):
        end = text.find(b"\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end].rstrip(b"\r")
        position = end + 1
        if not line:
            break
        found = _HEADER.fullmatch(line)
        if found is None or len(headers) >= _MOST_HEADERS:
            raise _invalid_part(number, "its headers cannot be read, or are too many")
        name = found[1].lower()
        if name in headers:
            raise _invalid_part(number, f"it has the header {name.decode()} twice")
        headers[name] = found[2].strip(b" \t")
    return headers, text[position:]


def _trim_body(number: int, body: bytes, content_length: bytes | None) -> bytes:
    """Remove the line end that some clients put behind a body."""
    if content_length is None:
        return body
    if not content_length.isdigit() or len(content_length) > 10:
        raise _invalid_part(number, "its Content-Length is not that of its body")
    size = int(content_length)
    if size > len(body) or body[size:].strip():
        raise _invalid_part(number, "its Content-Length is not that of its body")
    return body[:size]


def render_answer(part: BatchPart, status: int, headers: Headers, body: bytes) -> bytes:
    """Render the response to a part, without the boundary."""
    lines = [b"Content-Type: application/http"]
    if part.content_id:
        lines.append(b"Content-ID: <response-%b" % part.content_id.removeprefix(b"<"))
    phrase = http.HTTPStatus(status).phrase if status in _STATUSES else "Unknown"
    lines += [b"", b"HTTP/1.1 %d %b" % (status, phrase.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"content-length"]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body), b"", body])


def render_batch(answers: Sequence[bytes], boundary: bytes) -> bytes:
    parts = [b"--%b\r\n%b\r\n" % (boundary, answer) for answer in answers]
    return b"".join([*parts, b"--%b--\r\n" % boundary])


_STATUSES = frozenset(status.value for status in http.HTTPStatus)


def _invalid_part(number: int, reason: str) -> InvalidArgument:
    return InvalidArgument(f"Part {number} of the batch cannot be read: {reason}.")
