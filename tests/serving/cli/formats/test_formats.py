"""Formats, filters and transforms, with what gcloud 528.0.0 prints for the same records."""

from __future__ import annotations

from typing import Any

import pytest

from serving.cli.formats.filters import parse_filter
from serving.cli.formats.printers import format_lines
from serving.cli.formats.projection import parse_format, parse_key, parse_sort_keys
from serving.cli.formats.records import flatten_lists, sort_records
from serving.errors import InvalidArgument

RECORDS: list[dict[str, Any]] = [
    {
        "name": "projects/p/models/m1",
        "defaultVersion": {"name": "projects/p/models/m1/versions/v1", "createTime": "2026-01-02T03:04:05Z"},
        "labels": {"a": "b", "team": "x y"},
        "regions": ["us", "eu"],
        "onlinePredictionLogging": True,
        "n": 3,
    },
    {"name": "projects/p/models/longer-name", "regions": ["us"], "n": 12.5},
]


def printed(text: str, found: Any = RECORDS) -> list[str]:
    """The lines that a format makes of records."""
    return list(format_lines(parse_format(text), found))


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (
            "table(name.basename(), defaultVersion.name.basename())",
            ["NAME         DEFAULT_VERSION_NAME", "m1           v1", "longer-name"],
        ),
        (
            "table(name.basename():label=ID, n:sort=1, labels.list())",
            ["ID           N     LABELS", "m1           3     a=b,team=x y", "longer-name  12.5"],
        ),
        (
            "table(name.basename():sort=1,n)",
            ["NAME         N", "longer-name  12.5", "m1           3"],
        ),
        (
            "table[no-heading](name,n)",
            ["projects/p/models/m1           3", "projects/p/models/longer-name  12.5"],
        ),
        ("table(regions)", ["REGIONS", "['us', 'eu']", "['us']"]),
        ("table(name.basename(),missing:optional)", ["NAME", "m1", "longer-name"]),
        (
            "table(name.basename():align=right,n:align=center)",
            ["       NAME   N", "         m1   3", "longer-name  12.5"],
        ),
        ("value(name.basename(),n)", ["m1\t3", "longer-name\t12.5"]),
        ("value(labels)", ["a=b;team=x y", ""]),
        ("value(labels.a,regions)", ["b\tus;eu", "\tus"]),
        ("value(regions[0],regions.list())", ["us\tus,eu", "us\tus"]),
        ('value[separator=";"](name.basename(),n)', ["m1;3", "longer-name;12.5"]),
        ("value[delimiter=' '](regions)", ["us eu", "us"]),
        ("value(onlinePredictionLogging)", ["True", ""]),
        ("value(default_version.name.segment(3))", ["m1", ""]),
        ("csv(name.basename(),labels.team)", ["name,team", "m1,x y", "longer-name,"]),
        ("csv[no-heading](name.basename(),labels,regions)", ["m1,a=b;team=x y,us;eu", "longer-name,,us"]),
        ("list(name.basename(),n)", [" - m1", "   3", " - longer-name", "   12.5"]),
        ("flattened(name.basename())", ["---", "name: m1", "---", "name: longer-name"]),
        (
            "text(name.basename(),labels)",
            ["---", "labels.a:    b", "labels.team: x y", "name:        m1", "---", "name: longer-name"],
        ),
        (
            "config(name.basename(),labels)",
            ["name = m1", "[labels]", "a = b", "team = x y", "name = longer-name"],
        ),
        ("yaml(name.basename())", ["---", "name: m1", "---", "name: longer-name"]),
        ("none", []),
        ("disable", []),
    ],
)
def test_formats(form: str, lines: list[str]) -> None:
    """Each prints what gcloud prints."""
    assert printed(form) == lines


def test_one_record() -> None:
    """It has no marks of a list around it."""
    assert printed("json(name)", RECORDS[1]) == ['{\n  "name": "projects/p/models/longer-name"\n}']
    assert printed("yaml(n)", RECORDS[1]) == ["n: 12.5"]
    assert printed("value(n)", RECORDS[1]) == ["12.5"]


def test_a_table_in_a_box() -> None:
    """With its title above it."""
    lines = printed("table[box,title=Models](name.basename():label=ID)")

    assert lines[0].strip() == "Models"
    assert lines[2].strip("│ ") == "ID"
    assert "│ longer-name │" in lines


@pytest.mark.parametrize(
    ("transform", "value"),
    [
        ("name.scope(models)", "m1"),
        ("name.split('/').slice(1:3).join('|')", "p|models"),
        ("name.basename().upper()", "M1"),
        ("regions.len()", "2"),
        ("regions.count()", "eu=1;us=1"),
        ("regions.join('|')", "us|eu"),
        ("regions.map().upper()", "US;EU"),
        ("regions.sort()", "eu;us"),
        ("regions.slice(0:1)", "us"),
        ("regions[].list(separator=' ')", "us eu"),
        ("labels.list(show=keys)", "a,team"),
        ("labels.extract(team)", "x y"),
        ("labels.firstof(no, a)", "b"),
        ("labels.a.yesno(yes=Y,no=N)", "Y"),
        ("missing.yesno(yes=Y,no=N)", "N"),
        ("n.float(2)", "3"),
        ("n.size()", "3"),
        ("name.sub('projects/', '')", "p/models/m1"),
        ("name.trailoff(9)", "projec..."),
        ("defaultVersion.createTime.date('%Y-%m', tz=UTC)", "2026-01"),
        ("defaultVersion.createTime.date(format='%H:%M', tz='Europe/Berlin')", "04:04"),
        ("missing.date()", ""),
        ("n.duration()", "PT3S"),
    ],
)
def test_transforms(transform: str, value: str) -> None:
    """Each does what gcloud's does."""
    assert printed(f"value({transform})", RECORDS[0]) == [value]


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ("nonsense", "unknown format 'nonsense'"),
        ("table", "needs to be told what to show"),
        ("value(name", "is expected"),
        ("value(name))", "nothing more is expected"),
        ("value(name.nonsense())", "Unknown transform nonsense"),
        ("value(name.segment(1, 2, 3, 4))", "Wrong arguments for segment"),
        ("value(name.segment(x))", "cannot be done"),
        ("table[nonsense](name)", "no attribute 'nonsense'"),
        ("table(name:nonsense)", "no attribute 'nonsense'"),
        ("table(name:align=up)", "align is left, right or center"),
        ("value(regions[x])", "is no index"),
        ("value('name)", "closing ' is missing"),
        ("value(basename())", "a key is expected"),
        ("value(createTime.date(tz=Nowhere))", "no time zone"),
    ],
)
def test_wrong_formats(form: str, problem: str) -> None:
    """The problem and its place are told."""
    with pytest.raises(InvalidArgument, match=problem.replace("(", r"\(")):
        printed(form, {"createTime": "2026-01-02T03:04:05Z", "name": "a", "regions": []})


def test_what_others_wrote_begins_no_line() -> None:
    """In the formats for people; programs that read json and yaml get it as it is."""
    evil = {"name": "a\x1b[2J\nb"}

    assert printed("value(name)", evil) == [r"a\x1b[2J\nb"]
    assert printed("list(name)", evil) == [r" - a\x1b[2J\nb"]
    assert printed("text", evil) == [r"name: a\x1b[2J\nb"]
    assert printed("config", evil) == [r"name = a\x1b[2J\nb"]
    assert printed("table[no-heading](name)", evil) == [r"a\x1b[2J\nb"]


FILTERED: list[dict[str, Any]] = [
    {
        "name": "projects/p/models/life",
        "state": "READY",
        "labels": {"team": "ads", "x": "Two Words"},
        "n": 3,
        "ok": True,
        "t": "2026-01-02T03:04:05Z",
        "regions": ["us-central1", "eu"],
        "defaultVersion": {"name": "a/b/v1"},
        "description": "A Model-of life",
    },
    {"name": "projects/p/models/lifeboat", "state": "FAILED", "n": 10, "t": "2026-02-02T03:04:05Z"},
]


@pytest.mark.parametrize(
    ("expression", "first", "second"),
    [
        ("", True, True),
        ("name:life", True, True),
        ("name:*life", True, False),
        ("name=projects/p/models/life", True, False),
        ("state=ready", True, False),
        ("state:REA", True, False),
        ("state:REA*", True, False),
        ("state!=READY", False, True),
        ("NOT state=READY", False, True),
        ("-state:READY", False, True),
        ("labels.team=ads", True, False),
        ("labels.team:*", True, False),
        ("labels:team", True, False),
        ("labels:ads", True, False),
        ("n=3", True, False),
        ("n>5", False, True),
        ("n<=3", True, False),
        ("n!=3", False, True),
        ("t>2026-01-15", False, True),
        ("t<2026-01-15", True, False),
        ("state=(READY FAILED)", True, True),
        ("state:(READY,FAILED)", True, True),
        ("state=READY AND n=3", True, False),
        ("state=READY n=3", True, False),
        ("state=READY OR n=10", True, True),
        ("(state=READY OR n=10) AND n>5", False, True),
        ("name~life$", True, False),
        ("name!~boat", True, False),
        ("regions:us-central1", True, False),
        ("regions=us-central1", True, False),
        ("regions:us", True, False),
        ("regions:us*", True, False),
        ("ok=true", True, False),
        ("ok=True", True, False),
        ("missing=x", False, False),
        ("missing:*", False, False),
        ("missing!=x", True, True),
        ('missing=""', True, True),
        ("description:model", True, False),
        ('description:"A Model"', True, False),
        ("description=life", False, False),
        ("labels.x='Two Words'", True, False),
        ("default_version.name:v1", True, False),
        ("READY", True, False),
        ("life", True, True),
        ("state = READY", True, False),
        ("state~^R", True, False),
        ("state~ready", False, False),
        ("n:*", True, True),
        # Where gcloud finds nothing: the last part of a resource's name.
        ("name=life", True, False),
        ("name:life*", True, True),
        ("name:lifeb*", False, True),
        ("regions.len()=2", True, False),
    ],
)
def test_filters(expression: str, first: bool, second: bool) -> None:
    """Each finds what gcloud's finds."""
    matches = parse_filter(expression)

    assert [matches(record) for record in FILTERED] == [first, second]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("state=READY AND n=3 OR n=10", "parentheses are needed"),
        ("state=", "a value is expected"),
        ("state=READY)", "nothing more is expected"),
        ("(state=READY", "is expected"),
        ("bad(", "closing '\\)' is missing"),
        ("AND", "a condition such as"),
        ("state=READY AND", "a condition such as"),
        ("state~(", "a value is expected|is no regular expression|missing"),
        ("state~[", "is no regular expression"),
        ("=x", "a name is expected"),
        ("(" * 200 + "a=b" + ")" * 200, "levels deep"),
        ("NOT " * 5000 + "a=b", "levels deep"),
    ],
)
def test_wrong_filters(expression: str, problem: str) -> None:
    """They are refused in words."""
    with pytest.raises(InvalidArgument, match=problem):
        parse_filter(expression)


def test_sorting() -> None:
    """By several keys, down where ~ says so; what has no value comes first."""
    rows = [{"n": 2, "a": "x"}, {"n": 10, "a": "x"}, {"n": 1, "a": "y"}, {"a": "z"}]

    def order(*keys: str) -> list[Any]:
        return [row.get("n") for row in sort_records(rows, parse_sort_keys(keys))]

    assert order("n") == [None, 1, 2, 10]
    assert order("~n") == [10, 2, 1, None]
    assert order("a", "~n") == [10, 2, 1, None]


def test_flattening() -> None:
    """A record for each element, of lists in lists too; what is no list stays."""
    policy = {
        "etag": "e",
        "bindings": [{"role": "r", "members": ["a", "b"]}, {"role": "s", "members": ["c"]}],
    }

    def flat(key: str) -> list[Any]:
        return list(flatten_lists([policy], [parse_key(key, "--flatten")]))

    assert [one["bindings"]["role"] for one in flat("bindings")] == ["r", "s"]
    assert [one["bindings"]["role"] for one in flat("bindings[]")] == ["r", "s"]
    assert [(one["bindings"]["members"], one["etag"]) for one in flat("bindings[].members[]")] == [
        ("a", "e"),
        ("b", "e"),
        ("c", "e"),
    ]
    assert flat("etag") == [policy]
