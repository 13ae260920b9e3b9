"""Shares of projects and versions: rates as pure decisions, and places that are given back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.config import ServeConfig
from serving.errors import ResourceExhausted
from serving.gateway.proxy.rate_limits import (
    ApiRateLimits,
    PredictionLimits,
    RequestRate,
    TokenBuckets,
    charge_bucket,
)
from serving.gateway.proxy.routing_table import RouteTarget
from serving.names import VersionName
from tests.autoscaler.fakes import Clock, spec

RATES = st.builds(RequestRate, st.just("x"), st.floats(0.01, 10_000), st.sampled_from([1.0, 60.0]))
GAPS = st.lists(st.floats(0, 30), min_size=1, max_size=200)


@given(rate=RATES, gaps=GAPS)
def test_no_window_has_more_than_a_burst_and_the_rate(rate: RequestRate, gaps: list[float]) -> None:
    """Whenever requests come: between any two of them no more are admitted than those two allow."""
    full_at, now, admitted = 0.0, 0.0, []
    for gap in gaps:
        now += gap
        full_at, early = charge_bucket(full_at, rate, now)
        if not early:
            admitted.append(now)
    burst, per_second = max(1.0, rate.count), rate.count / rate.seconds
    for first, start in enumerate(admitted):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= burst + per_second * (admitted[last] - start) + 1e-3


@given(rate=RATES, gaps=GAPS)
def test_who_waits_as_long_as_told_is_admitted(rate: RequestRate, gaps: list[float]) -> None:
    """Not a moment sooner, and a refusal costs nothing."""
    full_at, now = 0.0, 0.0
    for gap in gaps:
        now += gap
        after, early = charge_bucket(full_at, rate, now)
        if early:
            assert after == full_at
            assert charge_bucket(full_at, rate, now + early)[1] == 0
            slack = 2e-6 * rate.seconds / rate.count  # sums of floats are not exact
            assert early < slack or charge_bucket(full_at, rate, now + early - slack)[1] > 0
        full_at = after


@given(rate=RATES, start=st.floats(0, 1e6))
def test_a_full_bucket_admits_a_burst(rate: RequestRate, start: float) -> None:
    """As many at once as come in its time, and at least one."""
    full_at, admitted = 0.0, 0
    while admitted < 200:
        full_at, early = charge_bucket(full_at, rate, start)
        if early:
            break
        admitted += 1
    assert admitted >= min(200, max(1, int(rate.count)))


def test_buckets_that_are_full_are_forgotten() -> None:
    """Clients may make up names of projects."""
    buckets = TokenBuckets(RequestRate("x", 10, 1))
    for number in range(5000):
        name, now = f"p{number}", number / 10
        buckets.store_charge(name, buckets.check_charge(name, name, now), now)
    assert len(buckets) < 1100


# ---- predictions


def target(version: str = "v1", project: str = "p") -> RouteTarget:
    return RouteTarget(
        name=VersionName(project, "m", version),
        spec=spec(key=f"{project}-{version}"),
        repeatable=False,
        logging=None,
        access_log=False,
    )


def limits(clock: Clock, **settings: Any) -> PredictionLimits:
    found = PredictionLimits(ServeConfig(**settings), clock)
    assert PredictionLimits.from_config(ServeConfig(**settings)) is not None
    return found


def refusal(found: PredictionLimits, one: RouteTarget) -> ResourceExhausted:
    with pytest.raises(ResourceExhausted) as caught:
        found.admit(one)
    return caught.value


def test_without_settings_there_is_nothing_to_keep_to() -> None:
    """So that nothing is asked for a prediction."""
    assert PredictionLimits.from_config(ServeConfig()) is None


def test_a_version_has_its_rate_and_a_project_has_one_for_all() -> None:
    """The message names the setting; whoever is refused is not charged."""
    clock = Clock()
    found = limits(clock, version_requests_per_second=3, project_requests_per_second=4)
    for _ in range(3):
        found.admit(target("v1"))

    error = refusal(found, target("v1"))
    assert error.message == (
        "The version projects/p/models/m/versions/v1 exceeded its rate limit of 3 requests per second "
        "(setting version_requests_per_second)."
    )
    assert error.retry_after == pytest.approx(1 / 3)
    found.admit(target("v2"))
    error = refusal(found, target("v2"))
    assert error.message == (
        "The project p exceeded its rate limit of 4 requests per second "
        "(setting project_requests_per_second)."
    )
    assert error.retry_after == pytest.approx(1 / 4)
    found.admit(target("v1", "other"))

    clock.now += 0.25
    found.admit(target("v2"))
    refusal(found, target("v2"))


def test_places_are_given_back() -> None:
    """However a request ends; who finds none is told before a body is read."""
    found = limits(Clock(), version_concurrency=1, project_concurrency=2)
    found.acquire(target("v1"))
    assert (
        "already has 1 requests in flight (setting version_concurrency)"
        in refusal(found, target("v1")).message
    )
    with pytest.raises(ResourceExhausted):
        found.acquire(target("v1"))
    found.acquire(target("v2"))
    assert refusal(found, target("v3")).message == (
        "The project p already has 2 requests in flight (setting project_concurrency)."
    )
    found.release(target("v2"))
    found.admit(target("v2"))
    found.release(target("v1"))
    found.acquire(target("v1"))
    found.release(target("v1"))
    assert found._version_concurrency is not None and len(found._version_concurrency) == 0
    assert found._project_concurrency is not None and len(found._project_concurrency) == 0


# ---- calls


def test_jobs_and_other_calls_have_rates_of_their_own() -> None:
    """Per project and minute."""
    clock = Clock()
    found = ApiRateLimits(ServeConfig(api_requests_per_minute=2, jobs_per_minute=1), clock)
    found.admit("p", job=False)
    found.admit("p", job=False)
    found.admit("p", job=True)
    found.admit("q", job=True)
    for job, setting, wait in (
        (False, "2 requests per minute (setting api_", 30),
        (True, "1 requests per minute (setting jobs_", 60),
    ):
        with pytest.raises(ResourceExhausted) as caught:
            found.admit("p", job=job)
        assert setting in caught.value.message
        assert caught.value.retry_after == pytest.approx(wait)
    clock.now += 60
    found.admit("p", job=True)
