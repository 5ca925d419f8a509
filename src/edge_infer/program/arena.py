"""Where each buffer of a step program lies: first fit over the buffers' lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass
class Interval:
    """A buffer that is needed from op `first` to op `last`, both included."""

    nbytes: int
    first: int
    last: int
    offset: int = 0


def align_up(nbytes: int) -> int:
    """The next multiple of the arena's alignment."""
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def plan_offsets(intervals: Sequence[Interval]) -> int:
    """Set each interval's offset so that buffers alive together never overlap.

    Returns the arena's size in bytes.
    """
    placed: list[Interval] = []  # alive, by offset
    total = 0
    for interval in sorted(intervals, key=lambda i: (i.first, -i.nbytes)):
        placed = [p for p in placed if p.last >= interval.first]
        size = align_up(interval.nbytes)
        ends = [0, *(align_up(p.offset + p.nbytes) for p in placed)]
        starts = [*(p.offset for p in placed), None]
        # The first gap between neighbours that is wide enough; the last one has no end.
        gap = next(
            i
            for i, (end, start) in enumerate(zip(ends, starts, strict=True))
            if start is None or end + size <= start
        )
        interval.offset = ends[gap]
        placed.insert(gap, interval)
        total = max(total, interval.offset + size)
    return total
