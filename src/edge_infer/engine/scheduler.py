"""Who runs in the next step: continuous batching, first come first served.

A step has a token budget. Decodes come first, one token each, then prefill chunks of
running sequences, then waiting sequences while there are slots and blocks. When blocks
run out the sequence that came last gives up its own and is computed again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from edge_infer.engine.kv_blocks import BlockPool
from edge_infer.engine.sequence import Sequence


@dataclass(frozen=True)
class Scheduled:
    """A sequence and how many of its tokens this step computes."""

    sequence: Sequence
    num_tokens: int


class Scheduler:
    """Two queues and a token budget."""

    def __init__(
        self, blocks: BlockPool, *, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._preempted = False
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; its full context must fit the pool (checked on admission)."""
        self.waiting.append(sequence)

    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.waiting or self.running)

    def schedule(self) -> list[Scheduled]:
        """The next step's sequences, their blocks allocated."""
        budget = self.max_num_batched_tokens
        step: list[Scheduled] = []
        self._preempted = False
        # Decodes and unfinished prefills, oldest first. Preemption removes from the end.
        for decode in (True, False):
            for sequence in list(self.running):
                if sequence not in self.running or (sequence.num_pending == 1) is not decode:
                    continue
                count = min(sequence.num_pending, budget)
                if count and self._grow_or_preempt(sequence, count, step):
                    step.append(Scheduled(sequence, count))
                    budget -= count
        # A sequence that just gave way would only take its blocks back and lose them again.
        room = not self._preempted
        while room and self.waiting and budget and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            count = min(sequence.num_pending, budget)
            if not self.blocks.can_grow(sequence.block_table, sequence.num_computed + count):
                break
            self.blocks.grow(sequence.block_table, sequence.num_computed + count)
            self.running.append(self.waiting.popleft())
            step.append(Scheduled(sequence, count))
            budget -= count
        return step

    def remove(self, sequence: Sequence) -> None:
        """Drop a finished or cancelled sequence and free its blocks at once."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.blocks.release(sequence.block_table)

    def _grow_or_preempt(self, sequence: Sequence, count: int, step: list[Scheduled]) -> bool:
        """Make room for `count` more tokens; False when the sequence itself had to give way."""
        needed = sequence.num_computed + count
        while not self.blocks.can_grow(sequence.block_table, needed):
            victim = self._victim(step)
            self._preempt(victim)
            if victim is sequence:
                return False
        self.blocks.grow(sequence.block_table, needed)
        return True

    def _victim(self, step: Seq[Scheduled]) -> Sequence:
        scheduled = {id(s.sequence) for s in step}
        for sequence in reversed(self.running):
            if id(sequence) not in scheduled:
                return sequence
        raise RuntimeError("KV blocks ran out although one full context fits the pool")

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self.blocks.release(victim.block_table)
        victim.num_computed = 0
        self.num_preemptions += 1
        self._preempted = True
        self.waiting.appendleft(victim)
