from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import orjson
import pytest

from serving.errors import InvalidArgument
from serving.gateway.api.query.paging import PagedList

Rows = list[dict[str, Any]]


def page(
    found: Rows,
    query: Mapping[str, str],
    name_of: Callable[[dict[str, Any]], str] = itemgetter("name"),
) -> tuple[Rows, str]:
    return PagedList(found, lambda row: row, name_of).page(query)


def rows(*ids: str, **fields: str) -> Rows:
    return [{"name": f"projects/p/models/{one}", **fields} for one in ids]


def ids(found: Rows) -> list[str]:
    return [row["name"].rsplit("/", 1)[-1] for row in found]


NUMBERED = rows(*(f"m{number:03}" for number in range(250)))


@pytest.mark.parametrize(
    ("query", "size"),
    [
        ({}, 20),
        ({"pageSize": ""}, 20),
        ({"pageSize": "0"}, 20),
        ({"pageSize": "7"}, 7),
        ({"pageSize": "101"}, 100),
    ],
)
def test_the_size_of_a_page(query: dict[str, str], size: int) -> None:
    """20 unless asked for, and at most 100."""
    found, token = page(NUMBERED, query)

    assert len(found) == size
    assert token


def test_pages_have_every_resource_once() -> None:
    """The last one has no token, also when it is full."""
    seen: list[str] = []
    token = ""
    for _ in range(5):
        found, token = page(NUMBERED, {"pageSize": "50", "pageToken": token})
        seen += ids(found)

    assert seen == ids(NUMBERED)
    assert token == ""


def test_no_resources_no_pages() -> None:
    """An empty list is one empty page."""
    assert page([], {}) == ([], "")
    assert page(NUMBERED, {"filter": "name:none"}) == ([], "")


def test_a_page_is_a_page_of_what_matches() -> None:
    """The filter comes before the size."""
    found, token = page(NUMBERED, {"filter": "name:m00*", "pageSize": "6"})
    rest, end = page(NUMBERED, {"filter": "name:m00*", "pageSize": "6", "pageToken": token})

    assert ids(found) + ids(rest) == [f"m{number:03}" for number in range(10)]
    assert end == ""


def test_what_is_deleted_meanwhile_moves_nothing() -> None:
    """The token names the last resource shown; without it the list goes on where it was."""
    _, token = page(rows("a", "b", "c", "d", "e"), {"pageSize": "2"})

    assert ids(page(rows("a", "c", "d"), {"pageToken": token})[0]) == ["c", "d"]
    assert ids(page(rows("c"), {"pageToken": token})[0]) == ["c"]
    assert ids(page(rows("a"), {"pageToken": token})[0]) == []


def test_what_is_added_meanwhile_moves_nothing() -> None:
    """What sorts before the token is not shown late."""
    _, token = page(rows("b", "d", "f"), {"pageSize": "2"})

    now = rows("a", "b", "c", "d", "e", "f")

    assert ids(page(now, {"pageToken": token})[0]) == ["e", "f"]


def newest_first(found: list[int], query: Mapping[str, str], states: Mapping[int, str]) -> tuple[Rows, str]:
    """Of a list that is sorted by numbers, which its tokens tell."""
    return PagedList(
        [-number for number in sorted(found, reverse=True)],
        lambda key: {"name": f"n{-key}", "state": states.get(-key, "RUNNING")},
        lambda key: f"projects/p/jobs/n/{-key}",
        lambda text: -int(text.rpartition("/")[2]),
    ).page(query)


def test_a_list_with_an_order_of_its_own() -> None:
    """What no longer matches, has gone or is new moves nothing: neither is one repeated nor left out."""
    query = {"filter": "state:RUNNING", "pageSize": "2"}
    found, token = newest_first([1, 2, 3, 4, 5], query, {})
    assert ids(found) == ["n5", "n4"]
    query["pageToken"] = token

    assert ids(newest_first([1, 2, 3, 4, 5, 6], query, {4: "DONE"})[0]) == ["n3", "n2"]
    assert ids(newest_first([1, 3, 6], query, {})[0]) == ["n3", "n1"]
    assert newest_first([5, 6], query, {}) == ([], "")


def test_a_token_of_another_list() -> None:
    """Its name has no place in the order."""
    _, token = page(NUMBERED, {"pageSize": "1"})
    with pytest.raises(InvalidArgument) as caught:
        newest_first([1], {"pageToken": token}, {})

    assert caught.value.field == "page_token"


@pytest.mark.parametrize("size", ["-1", "many", "1.5"])
def test_a_size_that_is_none(size: str) -> None:
    """It is refused with its name."""
    with pytest.raises(InvalidArgument) as caught:
        page(NUMBERED, {"pageSize": size})

    assert caught.value.field == "page_size"


@pytest.mark.parametrize("token", ["x", "???", "é", base64.urlsafe_b64encode(b"models/m").decode(), "//8="])
def test_a_token_that_is_none(token: str) -> None:
    """Only what a list gave out is taken."""
    with pytest.raises(InvalidArgument) as caught:
        page(NUMBERED, {"pageToken": token})

    assert caught.value.field == "page_token"


@pytest.mark.parametrize("before", [0, 120, 200])
def test_a_page_costs_what_is_on_it(before: int) -> None:
    """However long the list is and wherever the page, no more than the page and one after it is shown."""
    shown: list[str] = []
    named: list[str] = []

    def show(name: str) -> dict[str, Any]:
        shown.append(name)
        return {"name": name}

    def name_of(name: str) -> str:
        named.append(name)
        return name

    names = [row["name"] for row in NUMBERED]
    token = base64.urlsafe_b64encode(names[before - 1].encode()).decode() if before else ""

    found, _ = PagedList(names, show, name_of).page({"pageSize": "10", "pageToken": token})

    assert [row["name"] for row in found] == names[before : before + 10]
    assert shown == names[before : before + 11]
    assert len(named) < 15


WHOLE = PagedList(NUMBERED, lambda row: row, itemgetter("name"))


def test_a_whole_list_has_all_unless_a_size_is_asked_for() -> None:
    assert WHOLE.page_whole({}, 1 << 20) == (NUMBERED, "")

    first, token = WHOLE.page_whole({"pageSize": "3"}, 1 << 20)
    second, _ = WHOLE.page_whole({"pageSize": "3", "pageToken": token}, 1 << 20)

    assert [*first, *second] == NUMBERED[:6]


def test_a_whole_list_ends_where_it_takes_too_many_bytes() -> None:
    """Each page has one item at least, however large that is."""
    row = len(orjson.dumps(NUMBERED[0]))

    assert [len(WHOLE.page_whole({}, most)[0]) for most in (2 * row, row, 0)] == [2, 1, 1]

    seen, token = WHOLE.page_whole({}, 100 * row)
    while token:
        found, token = WHOLE.page_whole({"pageToken": token}, 100 * row)
        seen = [*seen, *found]
    assert seen == NUMBERED
