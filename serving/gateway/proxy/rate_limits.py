"""Rate limits (generic cell rate algorithm) and concurrency limits, per project and per version.

A bucket is one number, the time at which it is full again: each request moves that time on by its cost, and a
request that would move it too far ahead of the present is too early.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from serving.config import ServeConfig
from serving.errors import LimitReached
from serving.gateway.api.request_io import Endpoint
from serving.gateway.methods import ApiMethod
from serving.gateway.proxy.routing_table import RouteTarget

# Above this many buckets, those that are full again are dropped: clients may invent names.
_MAX_BUCKETS = 1024


@dataclass(frozen=True, slots=True)
class RequestRate:
    """`count` requests per `seconds`, in bursts of any size up to that; `setting` is named in errors."""

    setting: str
    count: float
    seconds: float


def charge_bucket(full_at: float, rate: RequestRate, now: float) -> tuple[float, float]:
    """The bucket after one more request, and how many seconds too early that request is (0: admitted)."""
    cost = rate.seconds / rate.count
    after = max(full_at, now) + cost
    early = after - now - max(rate.seconds, cost)
    # Sums of floats are not exact.
    return (after, 0.0) if early <= cost * 1e-6 else (full_at, early)


@dataclass(slots=True)
class TokenBuckets:
    """The buckets of one rate limit, by name."""

    rate: RequestRate
    _full_at: dict[str, float] = field(default_factory=dict)

    def check_charge(self, name: str, owner: str, now: float) -> float:
        """The bucket after one more request, for `store_charge`; raises LimitReached if it is too early."""
        full_at, early = charge_bucket(self._full_at.get(name, now), self.rate, now)
        if early:
            rate = self.rate
            per = "second" if rate.seconds == 1 else "minute"
            raise LimitReached(
                f"{owner} exceeded its rate limit of {rate.count:g} requests per {per} "
                f"(setting {rate.setting}).",
                setting=rate.setting,
                retry_after=early,
            )
        return full_at

    def store_charge(self, name: str, full_at: float, now: float) -> None:
        self._full_at[name] = full_at
        if len(self._full_at) > _MAX_BUCKETS:
            self._full_at = {key: time for key, time in self._full_at.items() if time > now}

    def __len__(self) -> int:
        return len(self._full_at)


@dataclass(slots=True)
class ConcurrencyLimit:
    """At most `limit` requests in flight for each name; `setting` is named in errors."""

    setting: str
    limit: int
    _in_flight: Counter[str] = field(default_factory=Counter)

    def check_free(self, name: str, owner: str) -> None:
        """Raises LimitReached if one more request is too many."""
        if self._in_flight[name] >= self.limit:
            raise LimitReached(
                f"{owner} already has {self.limit} requests in flight (setting {self.setting}).",
                setting=self.setting,
                retry_after=1,
            )

    def acquire(self, name: str) -> None:
        self._in_flight[name] += 1

    def release(self, name: str) -> None:
        self._in_flight[name] -= 1
        if not self._in_flight[name]:
            del self._in_flight[name]

    def __len__(self) -> int:
        return len(self._in_flight)


class PredictionLimits:
    """The limits of predictions, per version and per project."""

    def __init__(self, config: ServeConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._version_rate = _make_buckets(
            "version_requests_per_second", config.version_requests_per_second, 1
        )
        self._project_rate = _make_buckets(
            "project_requests_per_second", config.project_requests_per_second, 1
        )
        self._version_concurrency = _make_concurrency_limit("version_concurrency", config.version_concurrency)
        self._project_concurrency = _make_concurrency_limit("project_concurrency", config.project_concurrency)

    @classmethod
    def from_config(cls, config: ServeConfig) -> PredictionLimits | None:
        """None if the settings have no limits."""
        rates = (config.version_requests_per_second, config.project_requests_per_second)
        concurrency = (config.version_concurrency, config.project_concurrency)
        return cls(config) if any(rates) or any(concurrency) else None

    def admit(self, target: RouteTarget) -> None:
        """Charge the rate limits for a request, before its body is read; raises LimitReached."""
        self._check_concurrency(target)
        version, project, now = target.spec.key, target.name.project, self._clock()
        # A refused request is not charged: check every bucket before changing any.
        charges = [
            (buckets, name, buckets.check_charge(name, owner, now))
            for buckets, name, owner in (
                (self._version_rate, version, _describe_version(target)),
                (self._project_rate, project, _describe_project(project)),
            )
            if buckets is not None
        ]
        for buckets, name, full_at in charges:
            buckets.store_charge(name, full_at, now)

    def acquire(self, target: RouteTarget) -> None:
        """Count a complete request as in flight, until `release`; raises LimitReached."""
        self._check_concurrency(target)
        for limit, name in self._concurrency_limits(target):
            limit.acquire(name)

    def release(self, target: RouteTarget) -> None:
        for limit, name in self._concurrency_limits(target):
            limit.release(name)

    def _check_concurrency(self, target: RouteTarget) -> None:
        if self._version_concurrency is not None:
            self._version_concurrency.check_free(target.spec.key, _describe_version(target))
        if self._project_concurrency is not None:
            project = target.name.project
            self._project_concurrency.check_free(project, _describe_project(project))

    def _concurrency_limits(self, target: RouteTarget) -> Iterator[tuple[ConcurrencyLimit, str]]:
        if self._version_concurrency is not None:
            yield self._version_concurrency, target.spec.key
        if self._project_concurrency is not None:
            yield self._project_concurrency, target.name.project


class ApiRateLimits:
    """The rate limits of API calls, per project."""

    def __init__(self, config: ServeConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls = _make_buckets("api_requests_per_minute", config.api_requests_per_minute, 60)
        self._jobs = _make_buckets("jobs_per_minute", config.jobs_per_minute, 60)

    def admit(self, project: str, *, job: bool) -> None:
        """Charge the limits for a call, `job` if it submits one; raises LimitReached."""
        buckets = self._jobs if job else self._calls
        if buckets is not None:
            now = self._clock()
            buckets.store_charge(project, buckets.check_charge(project, _describe_project(project), now), now)


def with_rate_limits(limits: ApiRateLimits, method: ApiMethod, endpoint: Endpoint) -> Endpoint:
    """The endpoint behind the rate limits, if its resource is in a project."""
    job = method.id == "projects.jobs.create"

    @functools.wraps(endpoint)
    async def call_limited(request: Request) -> Response:
        limits.admit(request.path_params["project"], job=job)
        return await endpoint(request)

    return call_limited if method.resource.startswith("projects/{project}") else endpoint


def _make_buckets(setting: str, count: float, seconds: float) -> TokenBuckets | None:
    return TokenBuckets(RequestRate(setting, count, seconds)) if count else None


def _make_concurrency_limit(setting: str, limit: int) -> ConcurrencyLimit | None:
    return ConcurrencyLimit(setting, limit) if limit else None


def _describe_version(target: RouteTarget) -> str:
    return f"The version {target.name}"


def _describe_project(project: str) -> str:
    return f"The project {project}"
