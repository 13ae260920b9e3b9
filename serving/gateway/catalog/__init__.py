"""The catalog: which models, versions, jobs and operations exist, and the rules by which they change.

A rule is a pure function from a draft of the state and a request to a response. If it raises a ServingError,
nothing has changed; if it returns, its changes are committed together.
Source: sections 1.1, 2 and 7 of the AI Platform contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from serving.errors import Unavailable
from serving.gateway.catalog import policies
from serving.gateway.request_context import CURRENT_CAUSE
from serving.gateway.state.catalog_state import CatalogState, Commit, StateDraft
from serving.gateway.state.records import ChangeStamp
from serving.gateway.state.store import StateStore

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Seconds for which a change waits for those before it, and between retries of one that must be made.
_LOCK_TIMEOUT, _RETRY_DELAY = 10.0, 2.0


class Catalog:
    """The only owner of the state. Reads are free; changes are made by one rule at a time.

    `on_publish` is called on the event loop with every change, after it is on disk; the first one brings all
    that was loaded. `on_commit` is called after that, for the others.
    """

    def __init__(
        self,
        store: StateStore,
        on_publish: Callable[[Commit], None],
        on_commit: Callable[[Commit], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._on_publish = on_publish
        self._on_commit = on_commit
        self._write_lock = asyncio.Lock()
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self.state = CatalogState()

    @property
    def owns_work(self) -> bool:
        """Whether operations and jobs are this server's to run."""
        return True

    def set_work_fence(self) -> None:
        """Make what is changed in this context part of the work that this server owns now."""

    def clear_work_fence(self) -> None:
        """Make it no part of that: what comes of a node that some work has started is not."""

    async def open(self) -> None:
        """Load the committed state."""
        self.state = await self._run_in_writer(self._store.load)
        self._on_publish(Commit.from_state(self.state))

    async def read_clock(self) -> datetime.datetime:
        """What time it is, by which records are old. Raises Unavailable."""
        return datetime.datetime.now(datetime.UTC)

    async def check_writable(self) -> None:
        """Raises Unavailable if changes would be refused now."""
        await self._run_in_writer(self._store.check_writable)

    async def change(
        self, rule: Callable[Concatenate[StateDraft, ChangeStamp, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Apply a rule; when this returns, its changes are on disk and published.

        Raises what the rule raises, and Unavailable if the changes cannot be written now.
        """
        # Shielded: a client that goes away must not leave memory and disk apart.
        return await asyncio.shield(
            asyncio.ensure_future(self._apply_rule(lambda draft, stamp: rule(draft, stamp, *args, **kwargs)))
        )

    async def change_with_retry(
        self, rule: Callable[Concatenate[StateDraft, ChangeStamp, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Retries `change` while the state cannot be written."""
        while True:
            try:
                return await self.change(rule, *args, **kwargs)
            except Unavailable as error:
                logger.error("trying again in %g s: %s", _RETRY_DELAY, error.message)
                await asyncio.sleep(_RETRY_DELAY)

    async def _apply_rule(self, rule: Callable[[StateDraft, ChangeStamp], T]) -> T:
        async with self._hold_write_lock():
            draft, stamp = StateDraft(self.state), new_stamp()
            answer = rule(draft, stamp)
            if draft.changes:
                policies.update_owner_policies(draft, stamp, self.state)
                await self._run_in_writer(self._store.commit, draft.changes)
                self._publish(Commit(self.state, draft.to_state(), draft.changes))
            return answer

    def _publish(self, commit: Commit) -> None:
        self.state = commit.after
        self._on_publish(commit)
        self._on_commit(commit)

    async def _run_in_writer(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do what blocks on the one thread that uses the store."""
        call = functools.partial(work, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._writer, call)

    @contextlib.asynccontextmanager
    async def _hold_write_lock(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(_LOCK_TIMEOUT):
                await self._write_lock.acquire()
        except TimeoutError:
            raise Unavailable(
                f"Other changes have kept the state busy for {_LOCK_TIMEOUT:g} s. Nothing was changed; "
                "try again.",
                retry_after=_RETRY_DELAY,
            ) from None
        try:
            yield
        finally:
            self._write_lock.release()

    def close(self) -> None:
        """Finish what is being written and close the store."""
        self._writer.submit(self._store.close)
        self._writer.shutdown()


def new_stamp() -> ChangeStamp:
    return ChangeStamp(datetime.datetime.now(datetime.UTC), secrets.token_hex(8), CURRENT_CAUSE.get())
