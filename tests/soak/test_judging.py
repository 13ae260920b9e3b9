"""The judge of the long test with faults: each kind of fault that is planted is found, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.soak.judging import (
    MIB,
    NO_ANSWER,
    WRONG_ANSWER,
    Asked,
    End,
    Exit,
    Fault,
    Probe,
    Record,
    Usage,
    bad_while_ready,
    judge,
    table,
)  # fmt: skip

SECONDS = 60
GOOD = Record(
    asked=[Asked("forest", at / 10, at / 10 + 0.05, 200) for at in range(SECONDS * 10)],
    probes=[Probe(at / 5, True) for at in range(SECONDS * 5)],
    faults=[Fault("node killed", 10, 10), Fault("files", 20, 24)],
    usages=[Usage(at, 1, 100 * MIB, 40, 5) for at in range(SECONDS)],
    end=End(0.3, 0),
    warm_up=10,
)


def asked(start: float, status: int, *, seconds: float = 0.05, once: bool = False) -> Asked:
    """A request that failed."""
    return Asked("forest", start, start + seconds, status, once=once)


def with_asked(*more: Asked) -> Record:
    """The good record, with some requests instead of those of their time."""
    start, end = more[0].start, more[-1].end
    kept = [one for one in GOOD.asked if not start <= one.start <= end]
    return replace(GOOD, asked=sorted([*kept, *more], key=lambda one: one.end))


def test_nothing_is_wrong_with_a_good_record() -> None:
    """Nothing is found where there is nothing."""
    assert judge(GOOD) == []


@pytest.mark.parametrize("status", [NO_ANSWER, WRONG_ANSWER, 500, 503, 504])
def test_a_failure_without_a_fault_is_found(status: int) -> None:
    """One request among hundreds."""
    (found,) = judge(with_asked(asked(40, status)))

    assert found == f"1 requests of forest lost between 40.00 and 40.05 s: {status}"


def test_failures_alike_are_told_together() -> None:
    """With their number and their time."""
    (found,) = judge(with_asked(asked(40, 504), asked(41, 504)))

    assert found == "2 requests of forest lost between 40.00 and 41.05 s: 504"


@pytest.mark.parametrize(
    ("start", "status", "once", "wrong"),
    [
        (22, 503, False, False),  # no file could be opened: refused, and told so
        (26, 503, False, False),  # just afterwards
        (30, 503, False, True),  # too long afterwards
        (22, 504, False, True),  # late is never right
        (22, WRONG_ANSWER, False, True),
        (10, 500, True, False),  # what a lost node had begun, of a routine that is not repeated
        (10, 500, False, True),  # what is repeated is not lost
        (10, NO_ANSWER, True, True),  # the server was there all the time
    ],
)
def test_only_what_no_promise_covers_is_excused(start: float, status: int, once: bool, wrong: bool) -> None:
    """By the kind of the fault, its time, and whether the request is repeated."""
    assert bool(judge(with_asked(asked(start, status, once=once)))) == wrong


def test_requests_of_a_killed_server_are_excused() -> None:
    """Those that were open, and those that came before the next one was there."""
    record = with_asked(asked(39.9, NO_ANSWER, seconds=0.2), asked(40.5, NO_ANSWER))

    assert judge(replace(record, faults=[Fault("server killed", 40, 41)])) == []
    assert judge(record)


def failing(start: int, end: int) -> Sequence[Asked]:
    """Requests that are excused, ten in a second."""
    return [asked(at / 10, 503) for at in range(start * 10, end * 10)]


@pytest.mark.parametrize(("seconds", "wrong"), [(4, False), (6, True)])
def test_ready_and_failing_is_wrong_even_where_it_is_excused(seconds: int, wrong: bool) -> None:
    """No fault allows a server to say that it is ready for long while it is not."""
    record = replace(with_asked(*failing(20, 20 + seconds)), faults=[Fault("files", 20, 30)])

    found = judge(record)

    assert found == ([] if not wrong else [found[0]])
    assert not wrong or found[0] == "/readyz said ready while forest failed for 5.9 s, from 20.00 s on"


def test_unready_and_failing_is_honest() -> None:
    """The same where it said that it was not ready."""
    probes = [Probe(at / 5, not 100 <= at < 150) for at in range(SECONDS * 5)]
    record = replace(with_asked(*failing(20, 30)), probes=probes, faults=[Fault("files", 20, 30)])

    assert judge(record) == []


def test_a_version_that_nobody_asks_is_not_down() -> None:
    """Two bursts that failed, with a pause between them, are two bad times."""
    seconds, since = bad_while_ready([*failing(10, 11), *failing(20, 22)], GOOD.probes)

    assert seconds == pytest.approx(1.95)
    assert since == 20


def test_one_success_ends_a_bad_time() -> None:
    """What works now and then is not down."""
    requests = [*failing(20, 24), Asked("forest", 24, 24.05, 200), *failing(25, 29)]

    seconds, since = bad_while_ready(requests, GOOD.probes)

    assert seconds == pytest.approx(3.95)
    assert since == 25


def test_a_request_that_hangs_beside_others_that_are_answered_is_no_bad_time() -> None:
    """What failed in the end began before those that were answered; all of them failed only after these."""
    hung = asked(20, 0, seconds=7)
    requests = [*failing(20, 21), Asked("forest", 26, 26.05, 200), hung, *failing(27, 28)]

    seconds, since = bad_while_ready(requests, GOOD.probes)

    assert seconds == pytest.approx(1.9)
    assert since == 26.05


@pytest.mark.parametrize(
    ("what", "first", "last", "wrong"),
    [
        ("memory", 100 * MIB, 109 * MIB, False),
        ("memory", 100 * MIB, 111 * MIB, True),
        ("files", 73, 93, False),  # two more nodes are awake
        ("files", 73, 104, True),
        ("files", 400, 435, False),
        ("threads", 4, 12, False),  # a few come and go
        ("threads", 4, 13, True),
    ],
)
def test_growth_is_found(what: str, first: int, last: int, wrong: bool) -> None:
    """From the first third of a server's warm life to the last."""
    usages = [replace(usage, **{what: first if usage.at < SECONDS / 2 else last}) for usage in GOOD.usages]

    found = judge(replace(GOOD, usages=usages))

    assert found == ([f"{what} of server 1 grew from {first} to {last}"] if wrong else [])


def test_growth_of_a_new_process_is_none() -> None:
    """What it takes until it is warm is no leak; neither is what the next server takes more."""
    usages = [
        replace(usage, memory=(50 if usage.at < 10 else 100 if usage.at < 35 else 200) * MIB,
                life=1 if usage.at < 35 else 2)
        for usage in GOOD.usages
    ]  # fmt: skip

    assert judge(replace(GOOD, usages=usages)) == []


def test_a_short_life_shows_no_growth() -> None:
    """Nodes that come in its last seconds are no leak."""
    usages = [replace(usage, files=65 if usage.at < 25 else 130) for usage in GOOD.usages if usage.at < 39]

    assert judge(replace(GOOD, usages=usages)) == []


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (End(0.3, 1), "the server ended with status 1 after SIGTERM"),
        (End(40, 0), "the server took 40.0 s to end after SIGTERM"),
        (End(0.3, 0, processes=("pilot",)), "process left over: pilot"),
        (End(0.3, 0, files=("versions/1",)), "file left over: versions/1"),
    ],
)
def test_what_is_left_is_found(end: End, found: str) -> None:
    """A status, a time, a process, a file."""
    assert judge(replace(GOOD, end=end)) == [found]


def test_the_table_tells_by_fault() -> None:
    """Each kind has its requests, failures and reasons."""
    lines = list(table(with_asked(asked(22, 503))))

    assert [line.split()[:2] for line in lines[1:3]] == [["files", "1"], ["node", "killed"]]
    assert lines[1].split()[2:] == ["90", "1", "0.0", "0.1", "1x", "503"]
    assert lines[3].split()[:4] == ["all", "2", "600", "1"]
    assert "memory 100 → 100 MiB" in lines[4]


@pytest.mark.parametrize(
    ("fault", "status", "log", "found"),
    [
        ("threads", 3, "short of threads", None),
        ("node killed", 3, "short of threads", "without a reason: short of threads"),
        ("threads", 0, "short of threads", "with status 0"),
        ("threads", 3, "\n", "without a word"),
    ],
)
def test_a_server_may_end_at_its_start_for_a_shortage_it_tells_of(
    fault: str, status: int, log: str, found: str | None
) -> None:
    """Whatever watches over it sees that by the status, and who operates it by the log."""
    record = replace(GOOD, faults=[Fault(fault, 39, 41)], exits=[Exit(40, 42, status, log)])

    told = "server that was starting from 40.00 s on ended at 42.00 s"
    assert judge(record) == ([f"{told} {found}"] if found else [])


def test_a_shortage_that_was_over_is_no_reason_to_end() -> None:
    """The server started after it."""
    record = replace(GOOD, faults=[Fault("threads", 35, 39)], exits=[Exit(40, 42, 3, "short of threads")])

    assert len(judge(record)) == 1
