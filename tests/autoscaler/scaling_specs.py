"""Rules of scaling: the usual ones, and any that make sense."""

from __future__ import annotations

from hypothesis import strategies as st

from autoscaler.decision import ScalingSpec

# ---- stories: rows of (time, what is seen, nodes, words of the reason)


SPEC = ScalingSpec(max_nodes=8)  # 16 requests per node; windows of 60 and 6, idle window 300, delay 60


# ---- promises, in any state that can be reached


@st.composite
def specs(draw: st.DrawFn) -> ScalingSpec:
    """Any sensible spec that scales by itself."""
    return ScalingSpec(
        min_nodes=draw(st.sampled_from([0, 0, 0, 1, 2, 4])),
        max_nodes=draw(st.integers(1, 12)),
        target_concurrency=draw(st.floats(0.5, 32)),
        cpu_target=draw(st.none() | st.floats(0.1, 1)),
        idle_window=draw(st.floats(5, 600)),
        stable_window=draw(st.floats(6, 120)),
        panic_window=draw(st.floats(1, 6)),
        panic_threshold=draw(st.floats(1.1, 4)),
        scale_down_delay=draw(st.floats(0, 120)),
    )
