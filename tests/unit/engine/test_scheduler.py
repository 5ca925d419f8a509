"""The scheduler: budgets, order, preemption and the return of blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_infer.engine.kv_blocks import BlockPool
from edge_infer.engine.scheduler import Scheduled, Scheduler


@dataclass(eq=False)
class FakeSequence:
    """Just what the scheduler reads of a sequence."""

    num_tokens: int
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_computed


def run_step(scheduler: Scheduler) -> list[Scheduled]:
    """Schedule, and compute as the engine would: a finished prefill gains a token."""
    step = scheduler.schedule()
    for item in step:
        sequence = item.sequence
        complete = item.num_tokens == sequence.num_pending
        sequence.num_computed += item.num_tokens
        if complete:
            sequence.num_tokens += 1
    return step


def make(num_blocks: int = 64, *, seqs: int = 4, tokens: int = 32) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, 8), max_num_seqs=seqs, max_num_batched_tokens=tokens)


def test_a_long_prompt_is_chunked_beside_decodes() -> None:
    scheduler = make()
    short, long = FakeSequence(5), FakeSequence(70)
    scheduler.add(short)
    run_step(scheduler)
    scheduler.add(long)
    counts = []
    while long.num_tokens == 70:
        step = run_step(scheduler)
        assert step[0].sequence is short
        assert step[0].num_tokens == 1
        counts.append(step[1].num_tokens)
    assert counts == [31, 31, 8]


def test_at_most_max_num_seqs_run() -> None:
    scheduler = make(seqs=2)
    for _ in range(3):
        scheduler.add(FakeSequence(4))
    assert len(run_step(scheduler)) == 2
    assert len(scheduler.waiting) == 1


def test_the_latest_gives_way_and_comes_back() -> None:
    scheduler = make(num_blocks=4)
    first, second = FakeSequence(15), FakeSequence(15)
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(4):
        run_step(scheduler)
    assert scheduler.num_preemptions == 1
    assert first in scheduler.running
    assert second.block_table == []
    assert second in scheduler.waiting
    scheduler.remove(first)
    tokens = second.num_tokens
    while second.num_tokens == tokens:
        run_step(scheduler)
    assert second.num_computed == tokens


def test_a_request_larger_than_the_pool_is_a_bug_that_shows() -> None:
    scheduler = make(num_blocks=2)
    scheduler.add(FakeSequence(30))
    assert scheduler.schedule() == []


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=12),
    st.integers(9, 20),
    st.integers(1, 5),
    st.integers(5, 40),
)
def test_everything_ends_and_all_blocks_return(
    lengths: list[int], num_blocks: int, seqs: int, tokens: int
) -> None:
    scheduler = make(num_blocks, seqs=seqs, tokens=tokens)
    sequences = [FakeSequence(n) for n in lengths]
    goals = {id(s): s.num_tokens + 5 for s in sequences}
    for sequence in sequences:
        scheduler.add(sequence)
    for _ in range(2000):
        if not scheduler.has_work():
            break
        step = run_step(scheduler)
        assert step, "a step without work would hang"
        assert sum(item.num_tokens for item in step) <= tokens
        assert len(step) <= seqs
        held = [b for s in sequences for b in s.block_table]
        assert len(held) == len(set(held))
        for item in step:
            sequence = item.sequence
            assert len(sequence.block_table) * 8 >= sequence.num_computed
            if sequence.num_tokens >= goals[id(sequence)]:
                scheduler.remove(sequence)
    assert not scheduler.has_work()
    assert scheduler.blocks.num_free == num_blocks


def test_release_returns_blocks() -> None:
    pool = BlockPool(4, 8)
    table: list[int] = []
    pool.grow(table, 17)
    assert len(table) == 3
    assert pool.num_free == 1
    assert not pool.can_grow(table, 40)
    pool.release(table)
    assert table == []
    assert pool.num_free == 4


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (8, 1), (9, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert BlockPool(4, 8).blocks_for(tokens) == blocks
