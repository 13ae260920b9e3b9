"""Authenticates and authorizes requests.

The order is that of every request: authenticate (401), then authorize (403), and only then anything else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from autoscaler.supervision import BackgroundLoop, Supervisor
from serving.errors import PermissionDenied, ServingError, Unauthenticated
from serving.gateway.access import policy
from serving.gateway.access.policy import PoliciesByResource
from serving.gateway.access.token_store import TokenStore
from serving.gateway.access.tokens import TokenRecord, has_token_format, hash_token
from serving.gateway.api.request_io import Endpoint
from serving.gateway.coalesced_call import CoalescedCall
from serving.gateway.methods import ApiMethod
from serving.gateway.request_context import ANONYMOUS_CALLER, Caller, set_caller
from serving.gateway.thread_pool import ThreadPool
from serving.http_headers import Scope, find_header

logger = logging.getLogger(__name__)

# Seconds between two looks for tokens that the command has made or revoked.
_REFRESH_SECONDS: Final = 0.5
# Seconds that a look may take before the tokens read before are kept, as those of a database that is away.
_REFRESH_TIMEOUT: Final = 5.0
# Seconds after which the supervisor reports that no look has ended: revoked tokens would still work.
_REFRESH_DEADLINE: Final = 10.0
# Cached decisions on predictions, and the longest names in them, which callers choose.
_MAX_CACHED_DECISIONS, _MAX_CACHED_NAME = 10_000, 1024
_BEARER_PREFIX = b"bearer "


class AccessControl:
    """Authenticates callers by token, authorizes them by IAM policy. `clock` is seconds since the epoch."""

    def __init__(self, store: TokenStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        lock = asyncio.Lock()
        self._refreshing = CoalescedCall(self._read_tokens, lambda: lock)
        self._thread = ThreadPool("tokens", 1)
        self._tokens: dict[str, TokenRecord] = {}
        self._policies: PoliciesByResource = {}
        self._allowed: set[tuple[Caller, str]] = set()
        self._last_uses: dict[str, float] = {}
        self._rejected_count = 0
        self._log_muted_until = 0.0
        self._refresh_fails = False

    def set_policies(self, policies: PoliciesByResource) -> None:
        if policies is not self._policies:
            self._policies = policies
            self._allowed.clear()

    def start(self, supervisor: Supervisor) -> BackgroundLoop:
        """Start reading tokens again whenever the command has made or revoked one."""

        async def wait_interval() -> None:
            await asyncio.sleep(_REFRESH_SECONDS)

        return supervisor.start_loop(
            "tokens", wait_interval, self._refresh_or_keep_tokens, within=_REFRESH_DEADLINE
        )

    async def _refresh_or_keep_tokens(self) -> None:
        try:
            async with asyncio.timeout(_REFRESH_TIMEOUT):
                await self.refresh_tokens()
        except (ServingError, TimeoutError) as error:
            # Keep the tokens read before: a failing disk should lock nobody out.
            if not self._refresh_fails:
                reason = str(error) or f"Tokens could not be read within {_REFRESH_TIMEOUT:g} s."
                logger.warning("%s Keeping the tokens read before.", reason)
            self._refresh_fails = True
        else:
            self._refresh_fails = False

    async def refresh_tokens(self) -> None:
        """Read the tokens if they may have changed. Raises Unavailable."""
        await self._refreshing.run()

    async def _read_tokens(self) -> None:
        changed = await self._thread.run(self._store.load_if_changed)
        if changed is not None:
            self._tokens = {record.hash: record for record in changed}

    async def list_tokens(self) -> Sequence[TokenRecord]:
        """All tokens, oldest first. Raises Unavailable."""
        return await self._thread.run(self._store.load)

    async def put_token(self, record: TokenRecord) -> None:
        """Add a token; it is valid when this returns. Raises Unavailable."""
        await self._thread.run(self._store.put, record)
        await self.refresh_tokens()

    async def revoke_token(self, name: str) -> TokenRecord:
        """Revoke a token; it is refused when this returns. Raises NotFound, Unavailable."""
        record = await self._thread.run(self._store.revoke, name, self._clock())
        await self.refresh_tokens()
        return record

    def get_last_use(self, token: str) -> float | None:
        """When a token with this id was last used, in seconds since the epoch; None: not since the start."""
        return self._last_uses.get(token)

    def close(self) -> None:
        self._store.close()

    def authorize(self, scope: Scope, method: ApiMethod) -> None:
        """Authorize a routed request. Raises Unauthenticated or PermissionDenied."""
        if not method.resource:
            return  # a health check: it needs no token
        caller = self._authenticate(scope)
        if method.permission:
            self.check_permission(caller, method.permission, method.resource.format_map(scope["path_params"]))

    def authorize_prediction(self, scope: Scope, permission: str, resource: str) -> None:
        """Authorize a prediction, at the cost of a hash and two look-ups. Raises as `authorize` does.

        `permission` is a function of `resource`. `resource` is "" where the request names no valid one.
        """
        caller = self._authenticate(scope)
        decision = (caller, resource)
        if decision in self._allowed or not resource:
            return
        self.check_permission(caller, permission, resource)
        if len(resource) > _MAX_CACHED_NAME:
            return
        if len(self._allowed) >= _MAX_CACHED_DECISIONS:
            self._allowed.clear()
        self._allowed.add(decision)

    def _authenticate(self, scope: Scope) -> Caller:
        given = find_header(scope, b"authorization")
        caller = ANONYMOUS_CALLER if given is None else self.resolve_caller(given)
        set_caller(scope, caller)
        return caller

    def check_permission(self, caller: Caller, permission: str, resource: str) -> None:
        """Raise PermissionDenied, or Unauthenticated where a token might help, unless the caller has it."""
        if policy.is_allowed(self._policies, caller, permission, resource):
            return
        if caller == ANONYMOUS_CALLER:
            raise Unauthenticated(
                "The request has no token. Send one as `Authorization: Bearer TOKEN`; `pilotlight tokens "
                "create` makes them."
            )
        raise PermissionDenied(
            f"Permission '{permission}' denied on resource '{resource}' (or it may not exist)."
        )

    def filter_permissions(self, caller: Caller, resource: str, permissions: Iterable[str]) -> list[str]:
        """Return those of the permissions that the caller has."""
        held = policy.resolve_permissions(self._policies, caller, resource)
        return [permission for permission in permissions if permission in held]

    def resolve_caller(self, given: bytes) -> Caller:
        """The caller that sends this `Authorization` header. Raises Unauthenticated."""
        token = given[len(_BEARER_PREFIX) :].strip()
        if not given[: len(_BEARER_PREFIX)].lower() == _BEARER_PREFIX:
            raise self._invalid_credentials_error("not sent as a bearer token")
        record = self._tokens.get(hash_token(token))
        if record is None:
            raise self._invalid_credentials_error(
                "unknown" if has_token_format(token) else "no token of this server"
            )
        now = self._clock()
        if trouble := record.describe_invalidity(now):
            raise self._invalid_credentials_error(f"{trouble} (id {record.name}, {record.principal})")
        self._last_uses[record.name] = now
        return Caller(record.principal)

    def _invalid_credentials_error(self, reason: str) -> Unauthenticated:
        """Give callers the same text whatever the reason; log the reason, at most once a second."""
        self._rejected_count += 1
        now = self._clock()
        if not self._log_muted_until - 1 <= now < self._log_muted_until:  # also when the clock was set back
            logger.warning("refused %d credentials; the last: %s", self._rejected_count, reason)
            self._rejected_count, self._log_muted_until = 0, now + 1
        return Unauthenticated(
            "The request has invalid authentication credentials: expected `Authorization: Bearer TOKEN` with "
            "a token that is neither expired nor revoked."
        )


def predict_permission(name: str) -> str:
    return "ml.versions.predict" if "/versions/" in name or "/labels/" in name else "ml.models.predict"


def require_permission(access: AccessControl, method: ApiMethod, endpoint: Endpoint) -> Endpoint:
    @wraps(endpoint)
    async def call_endpoint(request: Request) -> Response:
        access.authorize(request.scope, method)
        return await endpoint(request)

    return call_endpoint
