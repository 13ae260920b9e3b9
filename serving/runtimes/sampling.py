"""Rows made up for a model, in bounds: for warming, judging and studying it before anybody asks it."""

from __future__ import annotations

from serving.runtimes import Runtime
from serving.runtimes.instances import Batch, count, size

# Bytes of made-up rows. Libraries hold them several times over, as other types and between layers, and a
# process keeps much of what it once had: of images of a megabyte a few must do.
_MOST = 4 << 20
# What can show whether rows influence each other.
_FEWEST = 2


def made_up(runtime: Runtime, most: int) -> Batch | None:
    """Up to `most` made-up rows, fewer where they are large; None when none can be made."""
    one = runtime.samples(1)
    if one is None or most == 1:
        return one
    row = size(one) // max(1, count(one))
    return runtime.samples(min(most, max(_FEWEST, _MOST // row)) if row else most)
