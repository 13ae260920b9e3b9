"""The thread pools of the libraries that are loaded by now.

Finding them takes more time than all the rest of a replica's start, so pilots import this as their last
module, and replicas that are forked find it done.
"""

from __future__ import annotations

from threadpoolctl import ThreadpoolController

_CONTROLLER = ThreadpoolController()


def set_thread_count(threads: int) -> None:
    """Set how many threads each library may use."""
    _CONTROLLER.limit(limits=threads)
