"""The arena plan: buffers alive together never overlap, and memory is reused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_infer.program.arena import ALIGNMENT, Interval, plan_offsets

intervals = st.lists(
    st.builds(
        lambda nbytes, first, length: Interval(nbytes, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 40),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(intervals)
def test_no_two_live_buffers_overlap(plan: list[Interval]) -> None:
    total = plan_offsets(plan)
    for i, a in enumerate(plan):
        assert a.offset % ALIGNMENT == 0
        assert a.offset + a.nbytes <= total
        for b in plan[i + 1 :]:
            alive_together = a.first <= b.last and b.first <= a.last
            disjoint = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert disjoint or not alive_together or not a.nbytes or not b.nbytes


def test_memory_of_the_dead_is_reused() -> None:
    plan = [Interval(1024, i, i) for i in range(10)]
    assert plan_offsets(plan) == 1024
