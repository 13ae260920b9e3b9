"""How long tests wait for what must come."""

from __future__ import annotations

# Seconds. On the busiest machine only a hang lasts that long; what has to be quick is measured instead.
HANG_SECONDS = 150.0
# The same for jobs: they run at a low priority, and on a busy machine all else goes first.
JOB_SECONDS = 500.0
