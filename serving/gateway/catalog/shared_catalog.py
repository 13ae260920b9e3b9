"""The catalog of a server that shares its database with others.

A rule is applied to the state that is known here, and its changes are committed only if that is still the
state there. Else what others have committed is taken in, and the rule is applied again.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from serving.gateway.catalog import Catalog, new_stamp, policies
from serving.gateway.coalesced_call import CoalescedCall
from serving.gateway.state.catalog_state import Commit, StateDraft
from serving.gateway.state.records import ChangeStamp
from serving.gateway.state.shared.postgres_store import CommitTerms, PostgresStore
from serving.gateway.state.shared.record_changes import MissedChanges, take_in

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The lease under which the work of this context was begun; None for calls of the API, which need none.
_WORK_FENCE: ContextVar[int | None] = ContextVar("pilotlight_work_fence", default=None)
# No lease has it.
_NO_FENCE = 0


class SharedCatalog(Catalog):
    """`on_peer_commit` is called after `on_publish` with what others have committed, `on_commit` otherwise.

    `revision` is that of `state`. `fence` is set while the work is this server's.
    """

    def __init__(
        self,
        store: PostgresStore,
        on_publish: Callable[[Commit], None],
        on_commit: Callable[[Commit], None] = lambda _: None,
        on_peer_commit: Callable[[Commit], None] = lambda _: None,
    ) -> None:
        super().__init__(store, on_publish, on_commit)
        self._shared = store
        self._on_peer_commit = on_peer_commit
        self.revision = 0
        self._token = ""  # of the commit that made the revision
        self.fence: int | None = None
        self._refreshing = CoalescedCall(self._take_in_missed, self._hold_write_lock)

    @property
    def owns_work(self) -> bool:
        return self.fence is not None

    def set_work_fence(self) -> None:
        _WORK_FENCE.set(self.fence or _NO_FENCE)

    def clear_work_fence(self) -> None:
        _WORK_FENCE.set(None)

    async def open(self) -> None:
        self.state, self.revision, self._token = await self._run_in_writer(self._shared.read_whole)
        self._on_publish(Commit.from_state(self.state))

    async def read_clock(self) -> datetime.datetime:
        """The earlier of two clocks: by one that is ahead, all that has ended would be old."""
        return min(await super().read_clock(), await self._run_in_writer(self._shared.read_clock))

    async def refresh(self) -> None:
        """Take in all that others have committed by now. Raises Unavailable.

        All who ask before the database is asked share one look: any caller of the API may have it asked, and
        changes wait for the same lock.
        """
        await self._refreshing.run()

    async def _take_in_missed(self) -> None:
        missed = await self._run_in_writer(self._shared.read_missed, self.revision, self._token)
        if missed is not None:
            self._take_in(missed)

    def _take_in(self, missed: MissedChanges) -> None:
        if missed.is_restored:
            logger.warning(
                "an older copy of the database was put back: the state of revision %d is given up for that "
                "of revision %d",
                self.revision,
                missed.revision,
            )
        commit = take_in(self.state, missed)
        self.state, self.revision, self._token = commit.after, missed.revision, missed.token
        self._on_publish(commit)
        self._on_peer_commit(commit)

    async def _apply_rule(self, rule: Callable[[StateDraft, ChangeStamp], T]) -> T:
        async with self._hold_write_lock():
            try:
                return await self._apply_until_written(rule, new_stamp(), _WORK_FENCE.get())
            finally:
                if self._shared.holds_commit_lock:
                    await self._run_in_writer(self._shared.release_commit_lock)

    async def _apply_until_written(
        self, rule: Callable[[StateDraft, ChangeStamp], T], stamp: ChangeStamp, fence: int | None
    ) -> T:
        """A refusal, and an answer without changes, count only on a state of after the call."""
        is_fresh = False
        while True:
            draft = StateDraft(self.state)
            try:
                answer = rule(draft, stamp)
            except Exception:
                if is_fresh:
                    raise
                await self._take_in_missed()
            else:
                if draft.changes:
                    if await self._try_commit(draft, stamp, fence):
                        return answer
                elif is_fresh:
                    return answer
                else:
                    await self._take_in_missed()
            is_fresh = True

    async def _try_commit(self, draft: StateDraft, stamp: ChangeStamp, fence: int | None) -> bool:
        """Whether the draft is committed; else it was made of an old state, and the next one will be."""
        policies.update_owner_policies(draft, stamp, self.state)
        terms = CommitTerms(self.revision, stamp.token, fence, self._token)
        missed = await self._run_in_writer(self._shared.commit_on, draft.changes, terms)
        if missed is not None:
            self._take_in(missed)
            return False
        self.revision, self._token = self.revision + 1, stamp.token
        self._publish(Commit(self.state, draft.to_state(), draft.changes))
        return True
