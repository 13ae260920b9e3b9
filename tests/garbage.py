"""What only the garbage collector would free."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def nothing_for_the_collector(*kinds: type) -> Iterator[Callable[[], None]]:
    """The collector is off in this block; what it yields fails if there are more of these objects by then.

    Objects of before are set apart for good: there are millions, and each look at them would take a second.
    """
    enabled, make = gc.isenabled(), logging.getLogRecordFactory()
    logging.setLogRecordFactory(functools.partial(_without_frames, make))
    gc.collect()
    gc.freeze()
    gc.disable()

    def check() -> None:
        left = [found for found in gc.get_objects() if type(found) in kinds]
        assert not left, {f"{type(found).__name__}": gc.get_referrers(found) for found in left}

    try:
        yield check
    finally:
        logging.setLogRecordFactory(make)
        if enabled:
            gc.enable()


def _without_frames(make: Callable[..., logging.LogRecord], *details: Any, **more: Any) -> logging.LogRecord:
    """A record whose exception is text already: pytest keeps records, and a traceback all that it came by."""
    record = make(*details, **more)
    if record.exc_info:
        record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
    return record
