"""Makes inputs: JSON that is nearly right, in every way in which clients and attackers get it wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random

# Numbers as they may be spelt, most of them as JSON has them.
_NUMBERS = (
    "0", "-0", "-0.0", "1", "-1", "2.5", "1e0", "1E5", "1e-7", "127", "128", "-129", "255", "256",
    "2147483648",    "9007199254740993", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "123456789012345678901234567890",
    "1e308", "1e309", "-1e400", "1e-400", "4.9e-324", "0.1", "3.4e38", "3.5e38", "1e39", "0e0", "1.0",
    "-1.5e+3",    "0.30000000000000004", "179769313486231580793728971405301e276", "9" * 400, "0." + "3" * 400,
)  # fmt: skip
_BAD_NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "+1",
    ".5",
    "1.",
    "01",
    "0x1",
    "1_0",
    "--1",
    "1e",
    "-",
    "1,1",
    "\u0663",
)
_TEXTS = (
    "", "a", "b64", "é", "\u2028", "\x7f", "\ufeff", "\U0001f600", "x" * 300, "null", "__proto__",
    "%s%n", "{0}",    "../../etc/passwd", "projects/p/models/m", "AAAA", "AAA", "A===", "//8=", "-_-_",
    "QUJD",
    "4pyTIMOgIGxhIG1vZGU=",
)  # fmt: skip
_ESCAPES = (
    "\\u0000",
    "\\ud800",
    "\\udc00\\ud800",
    "\\ud83d\\ude00",
    "\\u00e9",
    "\\/",
    "\\x41",
    "\\",
    "\\u12",
)
_KEYS = ("x", "y", "s", "flag", "a", "b64", "instances", "signature_name", "output_margin", "pad", "", "X")
_SPACES = ("", "", "", " ", "\n", "\t", "\r\n", "  ")
_JUNK = (
    b"\x00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"\\",
    b"-",
    b"e",
    b"\xf4\x90\x80\x80",
)


def body(random: Random, like: str) -> bytes:
    """The body of a prediction request; most instances are like what a model takes, see `LIKE`."""
    fitting = LIKE.get(like) if random.random() < 0.7 else None
    if fitting is None:
        instances = _instances(random)
    else:
        instances = "[" + ",".join(fitting(random) for _ in range(random.choice((1, 2, 3, 40)))) + "]"
    parts = [('"instances"', instances)]
    while random.random() < 0.25:
        name = random.choice(_KEYS)
        parts.append((json.dumps(name), value(random, 3)))
    if random.random() < 0.1:
        random.shuffle(parts)
    if random.random() < 0.02:
        parts = parts[1:]
    space = random.choice(_SPACES)
    text = "{" + f",{space}".join(f"{key}:{space}{inner}" for key, inner in parts) + "}"
    if random.random() < 0.3:
        # Long bodies take another way than short ones.
        text += " " * 600
    return mutated(random, text.encode("utf-8", "surrogatepass"))


def lines(random: Random) -> bytes:
    """Instances as a batch job reads them, one a line, without an end of the last one."""
    return mutated(random, "\n".join(_row(random) for _ in range(random.randrange(1, 8))).encode())


def text(random: Random, words: tuple[str, ...]) -> str:
    """Words of a small language, in any order, and some that are none."""
    found = [
        random.choice(words) if random.random() < 0.9 else _any_text(random)
        for _ in range(random.randrange(9))
    ]
    return random.choice(("", " ", " ")).join(found)


def mutated(random: Random, data: bytes) -> bytes:
    """The data, often as it was, else with a few bytes changed."""
    if random.random() < 0.5:
        return data
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        place = random.randrange(len(changed) + 1)
        match random.randrange(7):
            case 0 if changed:
                changed[place % len(changed)] ^= 1 << random.randrange(8)
            case 1:
                del changed[place : place + random.choice((1, 1, 4, 50))]
            case 2:
                changed[place:place] = random.choice(_JUNK)
            case 3:
                changed[place:place] = random.choice(_NUMBERS + _BAD_NUMBERS).encode()
            case 4:
                del changed[place:]
            case 5:
                start = random.randrange(len(changed) + 1)
                changed[place:place] = changed[start : start + random.choice((1, 10, 100))]
            case _:
                changed[place:place] = random.choice(_ESCAPES).encode()
    return bytes(changed)


def value(random: Random, depth: int) -> str:
    """Any JSON value."""
    kind = random.randrange(10 if depth else 6)
    if kind < 3:
        return _number(random)
    if kind < 5:
        return _string(random)
    if kind == 5:
        return random.choice(("null", "true", "false"))
    inner = [value(random, depth - 1) for _ in range(random.randrange(4))]
    if kind < 8:
        return "[" + ",".join(inner) + "]"
    return "{" + ",".join(f"{json.dumps(random.choice(_KEYS))}:{one}" for one in inner) + "}"


def _instances(random: Random) -> str:
    count = random.choice((0, 1, 1, 2, 3, 40))
    match random.randrange(12):
        case 0:
            return value(random, 4)
        case 1:
            return _deep(random)
        case 2:
            return "[" + ",".join(_object(random) for _ in range(count)) + "]"
        case 3:
            return "[" + ",".join(_string(random) for _ in range(count)) + "]"
        case 4:
            return "[" + ",".join('{"b64":' + _string(random) + "}" for _ in range(count)) + "]"
        case 5:
            return "[" + ",".join(_number(random) for _ in range(count)) + "]"
        case 6:
            return "[" + ",".join(value(random, 2) for _ in range(count)) + "]"
        case _:
            width = random.choice((4, 4, 4, 1, 2, 3, 0))
            odd = random.random() < 0.5
            return "[" + ",".join(_row(random, width, odd=odd) for _ in range(count)) + "]"


def _row(random: Random, width: int = 4, *, odd: bool = True) -> str:
    width += random.choice((-1, 1)) if odd and random.random() < 0.02 else 0
    whole = random.random() < 0.3
    values = []
    for _ in range(width):
        if odd and random.random() < 0.1:
            values.append(value(random, 1) if random.random() < 0.3 else _number(random))
        else:
            values.append(str(random.randrange(-99, 99)) if whole else f"{random.uniform(-5, 5):.3f}")
    return "[" + random.choice((",", ", ")).join(values) + "]"


def _object(random: Random) -> str:
    fields = {"x": "1.5", "y": "7", "flag": "true", "s": '"text"'}
    if random.random() < 0.5:
        fields[random.choice(_KEYS)] = value(random, 2)
    if random.random() < 0.2:
        fields.pop(random.choice(list(fields)))
    pairs = [f"{json.dumps(key)}:{inner}" for key, inner in fields.items()]
    if random.random() < 0.1:
        pairs.append(random.choice(pairs))
    return "{" + ",".join(pairs) + "}"


def _deep(random: Random) -> str:
    depth = random.choice((5, 33, 65, 200, 255, 500, 1023, 1025, 3000))
    opening, closing = random.choice((("[", "]"), ("[[1],", "]"), ('{"x":', "}"), ('[{"b64":', "}]")))
    return opening * depth + random.choice(("1", '"s"', "")) + closing * depth


def _number(random: Random) -> str:
    if random.random() < 0.05:
        return random.choice(_BAD_NUMBERS)
    return random.choice(_NUMBERS) if random.random() < 0.5 else f"{random.uniform(-1e3, 1e3):.4f}"


def _string(random: Random) -> str:
    if random.random() < 0.1:
        return '"' + random.choice(_ESCAPES) + '"'
    return json.dumps(random.choice(_TEXTS), ensure_ascii=random.random() < 0.5)


def _any_text(random: Random) -> str:
    return random.choice(_TEXTS + _NUMBERS[:10] + ("\x00", "\n", "'", "\u0663"))


def _whole_row(random: Random) -> str:
    last = _number(random) if random.random() < 0.03 else "7"
    return "[" + ",".join([*(str(random.randrange(-50, 99)) for _ in range(3)), last]) + "]"


LIKE: Mapping[str, Callable[[Random], str]] = {
    "rows": lambda random: _row(random, odd=random.random() < 0.1),
    "pairs": lambda random: _row(random, 2, odd=random.random() < 0.1),
    "whole": _whole_row,
    "numbers": lambda random: _number(random) if random.random() < 0.3 else "2.5",
    "booleans": lambda random: random.choice(("true", "false", "true", "false", '{"flag":true}')),
    "texts": lambda random: _string(random) if random.random() < 0.7 else '{"b64":"QUJD"}',
    "objects": lambda random: _object(random) if random.random() < 0.2 else _OBJECT,
}
_OBJECT = '{"x":1.5,"y":7,"flag":true,"s":"text"}'
