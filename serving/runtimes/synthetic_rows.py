"""Synthetic rows of bounded size, for warm-up, the check of batch equivalence, and verification."""

from __future__ import annotations

from serving.runtimes import Runtime
from serving.runtimes.instance_batch import Batch, count_bytes, count_rows

# Bytes of made-up rows. Libraries hold them several times over, as other types and between layers, and a
# process keeps much of what it once had: of images of a megabyte a few must do.
_MAX_BYTES = 4 << 20
# What can show whether rows influence each other.
_MIN_ROWS = 2


def make_bounded_rows(runtime: Runtime, max_rows: int) -> Batch | None:
    """Up to `max_rows` made-up rows, fewer where they are large; None when none can be made."""
    one = runtime.make_synthetic_rows(1)
    if one is None or max_rows == 1:
        return one
    row = count_bytes(one) // max(1, count_rows(one))
    return runtime.make_synthetic_rows(min(max_rows, max(_MIN_ROWS, _MAX_BYTES // row)) if row else max_rows)
