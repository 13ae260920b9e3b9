"""Media types of bodies, and content negotiation (RFC 9110, section 12.5.1)."""

from __future__ import annotations

from collections.abc import Sequence

from serving.errors import InvalidArgument, NotAcceptable

JSON, NPY, BINARY = "application/json", "application/x-npy", "application/octet-stream"
PROTOBUF = "application/x-protobuf"
"""Of messages of gRPC, where they stand beside bodies of HTTP; nobody asks for it."""


def strip_parameters(media_type: str) -> str:
    """A media type without its parameters, in lower case."""
    return media_type.partition(";")[0].strip().lower()


def negotiate_media_type(accept: str, offered: Sequence[str]) -> str:
    """The offered type with the highest quality in `Accept`, the first of equals.

    Raises NotAcceptable if none is accepted, InvalidArgument if the header is malformed.
    """
    if not accept.strip():
        return offered[0]
    ranges = [_parse_range(part) for part in accept.split(",") if part.strip()]
    weights = [_quality_of(media_type, ranges) for media_type in offered]
    best = max(weights)
    if best <= 0:
        raise NotAcceptable(
            f"The header Accept ({accept}) allows none of the forms an answer can have: {', '.join(offered)}."
        )
    return offered[weights.index(best)]


def _parse_range(text: str) -> tuple[str, float]:
    """A media range with its quality."""
    kind, *parameters = text.split(";")
    weight = 1.0
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                weight = float(value)
            except ValueError:
                weight = -1
            if not 0 <= weight <= 1:
                raise InvalidArgument(f"The header Accept has q={value.strip()}; q is a number from 0 to 1.")
    return kind.strip().lower(), weight


def _quality_of(media_type: str, ranges: Sequence[tuple[str, float]]) -> float:
    """The quality of a type: an exact range counts before `type/*`, and that before `*/*`."""
    for wanted in (media_type, f"{media_type.partition('/')[0]}/*", "*/*"):
        weights = [weight for name, weight in ranges if name == wanted]
        if weights:
            return max(weights)
    return 0.0
