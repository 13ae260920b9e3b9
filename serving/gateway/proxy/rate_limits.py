"""Nobody takes more than their share: rates and numbers at a time, per project and per version.

A bucket is kept as one number, the time at which it is full again: each request moves it on by what it costs,
and one that would move it too far ahead of the present comes too early. Time is an argument.
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

# Buckets kept before those that are full again are dropped: names may be made up by clients.
_MANY = 1024


@dataclass(frozen=True, slots=True)
class RequestRate:
    """`count` requests in `seconds`, as many of them at once as one likes. `setting` is its name."""

    setting: str
    count: float
    seconds: float


def charge_bucket(full_at: float, rate: RequestRate, now: float) -> tuple[float, float]:
    """When a bucket is full again after a request at `now`, and by how many seconds that one is too early.

    It is admitted, and the bucket changed, only if these are 0.
    """
    cost = rate.seconds / rate.count
    after = max(full_at, now) + cost
    early = after - now - max(rate.seconds, cost)
    # What is added up is never quite exact.
    return (after, 0.0) if early <= cost * 1e-6 else (full_at, early)


@dataclass(slots=True)
class TokenBuckets:
    """One bucket of a rate for each name."""

    rate: RequestRate
    _full_at: dict[str, float] = field(default_factory=dict)

    def check_charge(self, name: str, owner: str, now: float) -> float:
        """The bucket after one more request; raises LimitReached if that one comes too early."""
        full_at, early = charge_bucket(self._full_at.get(name, now), self.rate, now)
        if early:
            rate = self.rate
            per = "second" if rate.seconds == 1 else "minute"
            raise LimitReached(
                f"{owner} has used up its {rate.count:g} per {per} (setting {rate.setting}).",
                setting=rate.setting,
                retry_after=early,
            )
        return full_at

    def store_charge(self, name: str, full_at: float, now: float) -> None:
        """Keep what the bucket is."""
        self._full_at[name] = full_at
        if len(self._full_at) > _MANY:
            self._full_at = {key: kept for key, kept in self._full_at.items() if kept > now}

    def __len__(self) -> int:
        return len(self._full_at)


@dataclass(slots=True)
class ConcurrencyLimit:
    """At most `most` requests at a time for each name. `setting` is the name of that."""

    setting: str
    limit: int
    _taken: Counter[str] = field(default_factory=Counter)

    def check_free(self, name: str, owner: str) -> None:
        """Raise LimitReached if no place is free."""
        if self._taken[name] >= self.limit:
            raise LimitReached(
                f"{owner} has {self.limit} requests under way already (setting {self.setting}).",
                setting=self.setting,
                retry_after=1,
            )

    def acquire(self, name: str) -> None:
        """Take a place that is free."""
        self._taken[name] += 1

    def release(self, name: str) -> None:
        """Give a place back."""
        self._taken[name] -= 1
        if not self._taken[name]:
            del self._taken[name]

    def __len__(self) -> int:
        return len(self._taken)


class PredictionLimits:
    """What predictions are granted, of one version and of all versions of a project."""

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
        """As the settings want it; None if there is nothing to keep to."""
        rates = (config.version_requests_per_second, config.project_requests_per_second)
        places = (config.version_concurrency, config.project_concurrency)
        return cls(config) if any(rates) or any(places) else None

    def admit(self, target: RouteTarget) -> None:
        """Count a request whose body is still to come; raises LimitReached if it is one too many."""
        self._check_concurrency(target)
        version, project, now = target.spec.key, target.name.project, self._clock()
        # Who is refused is not charged: all are asked before any is changed.
        charges = [
            (buckets, name, buckets.check_charge(name, whose, now))
            for buckets, name, whose in (
                (self._version_rate, version, _describe_version(target)),
                (self._project_rate, project, _describe_project(project)),
            )
            if buckets is not None
        ]
        for buckets, name, full_at in charges:
            buckets.store_charge(name, full_at, now)

    def acquire(self, target: RouteTarget) -> None:
        """Take the places of a request, which is whole by now; raises LimitReached if none is free.

        They are the request's until `give`.
        """
        self._check_concurrency(target)
        for places, name in self._concurrency_limits(target):
            places.acquire(name)

    def release(self, target: RouteTarget) -> None:
        """Give the places of a request back."""
        for places, name in self._concurrency_limits(target):
            places.release(name)

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
    """What calls of the API are granted, per project."""

    def __init__(self, config: ServeConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls = _make_buckets("api_requests_per_minute", config.api_requests_per_minute, 60)
        self._jobs = _make_buckets("jobs_per_minute", config.jobs_per_minute, 60)

    def admit(self, project: str, *, job: bool) -> None:
        """Count a call, `job` if it submits one; raises LimitReached if it is one too many."""
        buckets = self._jobs if job else self._calls
        if buckets is not None:
            now = self._clock()
            buckets.store_charge(project, buckets.check_charge(project, _describe_project(project), now), now)


def rate_limited(limits: ApiRateLimits, method: ApiMethod, endpoint: Endpoint) -> Endpoint:
    """The endpoint, for as many calls as are granted."""
    job = method.id == "projects.jobs.create"

    @functools.wraps(endpoint)
    async def call_limited(request: Request) -> Response:
        limits.admit(request.path_params["project"], job=job)
        return await endpoint(request)

    return call_limited if method.resource.startswith("projects/{project}") else endpoint


def _make_buckets(setting: str, count: float, seconds: float) -> TokenBuckets | None:
    return TokenBuckets(RequestRate(setting, count, seconds)) if count else None


def _make_concurrency_limit(setting: str, most: int) -> ConcurrencyLimit | None:
    return ConcurrencyLimit(setting, most) if most else None


def _describe_version(target: RouteTarget) -> str:
    return f"The version {target.name}"


def _describe_project(project: str) -> str:
    return f"The project {project}"
