"""Who runs in the next step: continuous batching by priority, then first come first served.

A step has a token budget. Decodes come first, one token each, then prefill chunks of
running sequences, then waiting sequences while there are slots and blocks. When blocks
run out the sequence that is last in this order gives up its own and is computed again later.

A waiting sequence takes the computed blocks that its tokens begin with. When another one
is just computing the next of them, it waits for that instead of computing the same.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from edge_infer.engine.kv_groups import KvGroups, Prefix
from edge_infer.engine.sequence import Sequence


@dataclass(frozen=True)
class Scheduled:
    """A sequence, how many of its tokens this step computes, and guesses at what follows."""

    sequence: Sequence
    num_tokens: int
    draft: Seq[int] = ()


def _turn(sequence: Sequence) -> tuple[int, int]:
    return (sequence.priority, sequence.number)


class Scheduler:
    """Two queues and a token budget."""

    def __init__(
        self,
        blocks: KvGroups,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix_caching: bool = True,
        max_draft_tokens: int = 0,
    ) -> None:
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.prefix_caching = prefix_caching
        self.max_draft_tokens = max_draft_tokens  # of one step
        # Both in the order of priority and arrival.
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._preempted = False
        self.num_preemptions = 0
        self.prefix_cache_queries = 0  # tokens looked up
        self.prefix_cache_hits = 0  # tokens found

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; its full context must fit the pool (checked on admission)."""
        insort(self.waiting, sequence, key=_turn)

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
        if not self._preempted:
            self._admit(step, budget)
            if self.max_draft_tokens:
                self._add_drafts(step)
        return step

    def computed(self, sequence: Sequence) -> None:
        """Publish the sequence's full blocks, once a step has computed their tokens.

        Then those that its next token does not see are given up.
        """
        if self.prefix_caching:
            full = sequence.num_computed // self.blocks.block_size
            keys = sequence.block_keys(full, self.blocks.block_size)
            for index in range(sequence.num_published, full):
                self.blocks.publish(sequence.block_tables, index, keys[index])
            sequence.num_published = full
        self.blocks.slide(sequence.block_tables, sequence.num_computed)

    def remove(self, sequence: Sequence) -> None:
        """Drop a finished or cancelled sequence and free its blocks at once."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release(sequence)

    def _admit(self, step: list[Scheduled], budget: int) -> None:
        """Start waiting sequences while there are slots, tokens and blocks."""
        being_computed: set[bytes] | None = None
        for sequence in list(self.waiting):
            if not budget or len(self.running) >= self.max_num_seqs:
                return
            shared = Prefix()
            if self.prefix_caching:
                keys = self._prefix_keys(sequence)
                shared = self.blocks.find(keys)
                if being_computed is None:
                    being_computed = {key for s in self.running for key in self._next_keys(s)}
                missing = keys[shared.num_blocks :]
                if missing and missing[0] in being_computed:
                    continue
                being_computed.update(missing)
            cached = shared.num_blocks * self.blocks.block_size
            count = min(sequence.num_tokens - cached, budget)
            tables = self.blocks.start(shared, cached + count)
            if tables is None:
                return
            sequence.block_tables = tables
            sequence.num_computed = cached
            sequence.num_published = shared.num_blocks
            if sequence.num_cached_tokens is None:
                sequence.num_cached_tokens = cached
            self.prefix_cache_queries += sequence.num_tokens
            self.prefix_cache_hits += cached
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=_turn)
            step.append(Scheduled(sequence, count))
            budget -= count

    def _add_drafts(self, step: list[Scheduled]) -> None:
        """Give decodes drafts from what the step has left; nobody gives way for a guess."""
        left = self.max_num_batched_tokens - sum(item.num_tokens for item in step)
        share = min(left, self.max_draft_tokens) // max(1, len(step))
        for index, item in enumerate(step):
            sequence = item.sequence
            if sequence.num_pending != 1 or sequence.lookup is None:
                continue
            draft = sequence.lookup.propose(sequence, min(share, sequence.num_tokens_left - 1))
            needed = sequence.num_tokens + len(draft)
            if draft and self.blocks.can_grow(sequence.block_tables, needed):
                self.blocks.grow(sequence.block_tables, needed)
                step[index] = Scheduled(sequence, item.num_tokens, draft)

    def _prefix_keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of the blocks that could be taken: at least one token has to be computed."""
        full = (sequence.num_tokens - 1) // self.blocks.block_size
        return sequence.block_keys(full, self.blocks.block_size)[:full]

    def _next_keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of the blocks that a running sequence's prefill has still to compute."""
        if sequence.num_pending <= 1:
            return []
        return self._prefix_keys(sequence)[sequence.num_published :]

    def _grow_or_preempt(self, sequence: Sequence, count: int, step: list[Scheduled]) -> bool:
        """Make room for `count` more tokens; False when the sequence itself had to give way."""
        needed = sequence.num_computed + count
        while not self.blocks.can_grow(sequence.block_tables, needed):
            victim = self._victim(step)
            self._preempt(victim)
            if victim is sequence:
                return False
        self.blocks.grow(sequence.block_tables, needed)
        return True

    def _victim(self, step: Seq[Scheduled]) -> Sequence:
        scheduled = {id(s.sequence) for s in step}
        for sequence in reversed(self.running):
            if id(sequence) not in scheduled:
                return sequence
        raise RuntimeError("KV blocks ran out although one full context fits the pool")

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._release(victim)
        victim.num_computed = 0
        self.num_preemptions += 1
        self._preempted = True
        self.add(victim)

    def _release(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.block_tables)
        sequence.num_published = 0
