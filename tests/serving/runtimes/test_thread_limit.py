from __future__ import annotations

import pytest
import threadpoolctl

from serving.config import FRAMEWORK_ENVIRONMENT
from serving.runtimes import thread_limit
from serving.runtimes.thread_limit import ThreadLimit


def pools() -> set[int]:
    """The sizes of the thread pools of BLAS in this process."""
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize("wanted", [1, 2])
def test_the_pools_are_kept_to_a_number(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with threadpoolctl.threadpool_limits(limits=2):  # and as they were, in the end
        ThreadLimit(wanted).apply()

        assert pools() == {wanted}


def test_nothing_is_searched_where_the_environment_has_said_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries read it when they were loaded."""
    for name, value in FRAMEWORK_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delattr(thread_limit, "ThreadpoolController")  # it could not search

    ThreadLimit(1).apply()
