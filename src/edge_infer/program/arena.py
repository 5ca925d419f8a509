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
        offset = 0
        position = 0
        for position, other in enumerate(placed):
            if offset + align_up(interval.nbytes) <= other.offset:
                break
            offset = other.offset + align_up(other.nbytes)
        else:
            position = len(placed)
        interval.offset = offset
        placed.insert(position, interval)
        total = max(total, offset + align_up(interval.nbytes))
    return total
