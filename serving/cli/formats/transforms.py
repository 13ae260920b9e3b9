"""Transforms of values before they are shown: `name.basename()`, `labels.list(separator=;)`.

Names, arguments and results are those of gcloud; transforms that no resource of this API needs are left out.
"""

from __future__ import annotations

import datetime
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.errors import InvalidArgument

_KIB = 1024
_UNITS = ("", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Transform:
    """A call of a transform; `list_depth` is the number of list levels below which it is applied."""

    name: str
    arguments: tuple[str, ...] = ()
    named: tuple[tuple[str, str], ...] = ()
    list_depth: int = 0

    def apply(self, value: Any) -> Any:
        """The transformed value. Raises InvalidArgument for arguments that cannot be."""
        return self._apply(value, self.list_depth)

    def _apply(self, value: Any, depth: int) -> Any:
        if depth and isinstance(value, list):
            return [self._apply(one, depth - 1) for one in value]
        try:
            return _TRANSFORMS[self.name](value, *self.arguments, **dict(self.named))
        except (ValueError, re.error) as error:
            raise InvalidArgument(f"{self.name}() cannot be done: {error}.") from error


def check_transform(transform: Transform) -> None:
    """Raises InvalidArgument for a transform that is unknown, or called with wrong arguments."""
    function = _TRANSFORMS.get(transform.name)
    if function is None:
        raise InvalidArgument(f"Unknown transform {transform.name}(); known are {', '.join(NAMES)}.")
    try:
        inspect.signature(function).bind(None, *transform.arguments, **dict(transform.named))
    except TypeError as error:
        raise InvalidArgument(f"Wrong arguments for {transform.name}(): {error}.") from error


def format_text(value: Any, separator: str = ";") -> str:
    """A value as a text of one line; lists and mappings are joined."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return separator.join(f"{key}={format_text(value[key], separator)}" for key in sorted(value))
    if isinstance(value, list):
        return separator.join(format_text(one, separator) for one in value)
    return str(value)


def _always(value: Any) -> Any:
    return value


def _basename(value: Any, undefined: str = "") -> Any:
    return str(value).rstrip("/").rpartition("/")[2] if value else undefined


def _segment(value: Any, index: str = "-1", undefined: str = "") -> Any:
    parts = str(value).split("/") if value else []
    position = int(index)
    return parts[position] if -len(parts) <= position < len(parts) else undefined


def _scope(value: Any, *names: str) -> Any:
    for name in names or ("regions", "zones", "projects"):
        _, found, rest = str(value or "").partition(f"/{name}/")
        if found:
            return rest
    return _basename(value) if not names else str(value or "")


def _list(value: Any, show: str = "", undefined: str = "", separator: str = ",") -> Any:
    if isinstance(value, Mapping):
        keys = sorted(value)
        match show:
            case "keys":
                return separator.join(keys)
            case "values":
                return separator.join(format_text(value[key], separator) for key in keys)
        return separator.join(f"{key}={format_text(value[key], separator)}" for key in keys)
    if isinstance(value, list):
        return separator.join(format_text(one, separator) for one in value)
    return undefined if value is None else value


def _join(value: Any, sep: str = "/", undefined: str = "") -> Any:
    return sep.join(map(format_text, value)) if isinstance(value, list) else undefined


def _split(value: Any, sep: str = "/", undefined: str = "") -> Any:
    return str(value).split(sep) if value else undefined


def _slice(value: Any, op: str = ":", undefined: str = "") -> Any:
    bounds = [int(part) if part.strip() else None for part in op.split(":")]
    if not isinstance(value, list | str):
        return undefined
    return (
        value[slice(*bounds)] if len(bounds) > 1 else [value[bounds[0]]] if bounds[0] is not None else value
    )


def _sort(value: Any, attr: str = "") -> Any:
    if not isinstance(value, list):
        return value
    return sorted(
        value, key=lambda one: format_text(one.get(attr) if attr and isinstance(one, Mapping) else one)
    )


def _extract(value: Any, *keys: str) -> Any:
    return [value[key] for key in keys if key in value] if isinstance(value, Mapping) else []


def _first_of(value: Any, *keys: str) -> Any:
    found = (value[key] for key in keys if value.get(key)) if isinstance(value, Mapping) else iter(())
    return next(found, None)


def _count(value: Any) -> Any:
    if not isinstance(value, list | str):
        return 0
    return {format_text(one): value.count(one) for one in value}


def _len(value: Any) -> int:
    return len(value) if isinstance(value, list | Mapping | str) else 0


def _not_null(value: Any) -> Any:
    return [one for one in value if one is not None] if isinstance(value, list) else value


def _yes_no(value: Any, yes: str = "", no: str = "No") -> Any:
    return (yes or value) if value else no


def _upper(value: Any) -> Any:
    return format_text(value).upper() if value else ""


def _lower(value: Any) -> Any:
    return format_text(value).lower() if value else ""


def _sub(value: Any, pattern: str, replacement: str, count: str = "0", ignorecase: str = "true") -> Any:
    flags = re.IGNORECASE if ignorecase.lower() != "false" else 0
    return re.sub(pattern, replacement, format_text(value), count=int(count), flags=flags)


def _trail_off(value: Any, character_limit: str, undefined: str = "") -> Any:
    limit, text = int(character_limit), format_text(value)
    return undefined if value is None else text if len(text) <= limit else f"{text[: limit - 3]}..."


def _float(value: Any, precision: str = "6", undefined: str = "") -> Any:
    try:
        return f"{float(value):.{int(precision)}g}"
    except (TypeError, ValueError):
        return undefined


def _size(value: Any, zero: str = "0", precision: str = "1") -> Any:
    try:
        number = float(value or 0)
    except (TypeError, ValueError):
        return format_text(value)
    if not number:
        return zero
    unit = 0
    while number >= _KIB and unit < len(_UNITS) - 1:
        number, unit = number / _KIB, unit + 1
    shown = f"{number:.{int(precision)}f}"
    return (shown.rstrip("0").rstrip(".") if "." in shown else shown) + _UNITS[unit]


def _date(value: Any, format: str = "%Y-%m-%dT%H:%M:%S", undefined: str = "", tz: str = "") -> Any:  # noqa: A002
    try:
        moment = datetime.datetime.fromisoformat(str(value))
    except ValueError:
        return undefined
    if tz:
        moment = moment.astimezone(None if tz.upper() == "LOCAL" else _load_time_zone(tz))
    return moment.strftime(format)


def _duration(value: Any, start: str = "", end: str = "", undefined: str = "") -> Any:
    try:
        if isinstance(value, Mapping):
            begun, ended = (datetime.datetime.fromisoformat(str(value[key])) for key in (start, end))
            seconds = (ended - begun).total_seconds()
        else:
            seconds = float(str(value).removesuffix("s"))
    except (KeyError, ValueError):
        return undefined
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return "P" + (
        f"T{hours}H{minutes}M{rest}S" if hours else f"T{minutes}M{rest}S" if minutes else f"T{rest}S"
    )


def _load_time_zone(name: str) -> datetime.tzinfo:
    import zoneinfo  # noqa: PLC0415  start-up time

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidArgument(f"date(): there is no time zone {name!r}.") from error


_TRANSFORMS: Mapping[str, Callable[..., Any]] = {
    "always": _always,
    "basename": _basename,
    "count": _count,
    "date": _date,
    "duration": _duration,
    "extract": _extract,
    "firstof": _first_of,
    "flatten": _list,
    "float": _float,
    "join": _join,
    "len": _len,
    "list": _list,
    "lower": _lower,
    "notnull": _not_null,
    "scope": _scope,
    "segment": _segment,
    "size": _size,
    "slice": _slice,
    "sort": _sort,
    "split": _split,
    "sub": _sub,
    "trailoff": _trail_off,
    "upper": _upper,
    "yesno": _yes_no,
}
# `map` is no function: the transform after it applies to each element.
MAP = "map"
NAMES = tuple(sorted((*_TRANSFORMS, MAP)))
