"""The scheduler: budgets, order, preemption and the return of blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_infer.engine.kv_blocks import BlockPool
from edge_infer.engine.kv_groups import KvGroups
from edge_infer.engine.scheduler import Scheduled, Scheduler

_numbers = count()


class FakeLookup:
    """Proposes as much as it may."""

    def propose(self, _: object, limit: int) -> list[int]:
        return [7] * limit


@dataclass(eq=False)
class FakeSequence:
    """Just what the scheduler reads of a sequence."""

    num_tokens: int
    num_computed: int = 0
    block_tables: list[list[int]] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))
    priority: int = 0
    num_published: int = 0
    num_cached_tokens: int | None = None
    lookup: FakeLookup | None = None
    num_tokens_left: int = 100
    content: str = ""  # sequences with the same one begin with the same tokens

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_computed

    def block_keys(self, count: int, _block_size: int) -> list[bytes]:
        owner = self.content or str(self.number)
        return [f"{owner} {index}".encode() for index in range(count)]


def run_step(scheduler: Scheduler) -> list[Scheduled]:
    """Schedule, and compute as the engine would: a finished prefill gains a token."""
    step = scheduler.schedule()
    for item in step:
        sequence = item.sequence
        complete = item.num_tokens == sequence.num_pending
        sequence.num_computed += item.num_tokens
        scheduler.computed(sequence)
        if complete:
            sequence.num_tokens += 1
    return step


def make(num_blocks: int = 64, *, seqs: int = 4, tokens: int = 32) -> Scheduler:
    blocks = KvGroups([BlockPool(num_blocks, 8)])
    return Scheduler(blocks, max_num_seqs=seqs, max_num_batched_tokens=tokens)


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
    assert second.block_tables == []
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
    st.booleans(),
    st.integers(9, 20),
    st.integers(1, 5),
    st.integers(5, 40),
)
def test_everything_ends_and_all_blocks_return(
    lengths: list[int], shared: bool, num_blocks: int, seqs: int, tokens: int
) -> None:
    scheduler = make(num_blocks, seqs=seqs, tokens=tokens)
    sequences = [FakeSequence(n, content="all" if shared else "") for n in lengths]
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
        held = [b for s in sequences for table in s.block_tables for b in table]
        assert shared or len(held) == len(set(held))
        for item in step:
            sequence = item.sequence
            assert len(sequence.block_tables[0]) * 8 >= sequence.num_computed
            if sequence.num_tokens >= goals[id(sequence)]:
                scheduler.remove(sequence)
    assert not scheduler.has_work()
    assert scheduler.blocks.num_free == num_blocks


def test_a_lower_priority_number_runs_first() -> None:
    scheduler = make(seqs=1)
    late, early = FakeSequence(4, priority=1), FakeSequence(4)
    scheduler.add(late)
    scheduler.add(early)
    assert run_step(scheduler)[0].sequence is early


def test_a_computed_prefix_is_taken() -> None:
    scheduler = make()
    first, second = FakeSequence(20, content="same"), FakeSequence(20, content="same")
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    step = run_step(scheduler)
    assert [item.num_tokens for item in step] == [1, 4]  # two blocks of eight were there
    assert second.num_cached_tokens == 16
    (one,), (two,) = first.block_tables, second.block_tables
    assert two[:2] == one[:2]
    assert two[2] != one[2]


def test_at_least_one_token_is_computed() -> None:
    scheduler = make()
    first, second = FakeSequence(16, content="same"), FakeSequence(16, content="same")
    scheduler.add(first)
    run_step(scheduler)
    scheduler.add(second)
    assert run_step(scheduler)[1].num_tokens == 8


def test_what_is_being_computed_is_waited_for_by_those_who_need_it() -> None:
    scheduler = make(seqs=8, tokens=32)
    same = [FakeSequence(48, content="same") for _ in range(3)]
    other = FakeSequence(8)
    for sequence in [*same, other]:
        scheduler.add(sequence)
    counts = [item.num_tokens for item in run_step(scheduler)]
    assert counts == [32]
    step = run_step(scheduler)
    assert [item.sequence for item in step] == [same[0], other]
    step = run_step(scheduler)
    assert {item.sequence for item in step} == {*same, other}
    assert [s.num_cached_tokens for s in same] == [0, 40, 40]


def test_a_preempted_sequence_takes_back_what_is_still_there() -> None:
    scheduler = make(num_blocks=5)
    first, second = FakeSequence(15), FakeSequence(15)
    scheduler.add(first)
    scheduler.add(second)
    while not scheduler.num_preemptions:
        run_step(scheduler)
    scheduler.remove(first)
    run_step(scheduler)
    assert second.num_computed == second.num_tokens - 1 or second.num_pending == 1
    assert scheduler.prefix_cache_hits > 0


def drafting(count: int, *, blocks: int = 64, tokens: int = 32) -> Scheduler:
    """A scheduler with sequences of 7 tokens that decode and have much to propose."""
    scheduler = Scheduler(
        KvGroups([BlockPool(blocks, 8)]),
        max_num_seqs=9,
        max_num_batched_tokens=tokens,
        max_draft_tokens=12,
    )
    for _ in range(count):
        scheduler.add(FakeSequence(6, lookup=FakeLookup()))
    run_step(scheduler)
    return scheduler


def test_drafts_are_shared_out() -> None:
    scheduler = drafting(3, tokens=18)
    assert [len(item.draft) for item in scheduler.schedule()] == [4, 4, 4]
    scheduler = drafting(2, tokens=12)
    assert [len(item.draft) for item in scheduler.schedule()] == [5, 5]  # 2 + 10 tokens


def test_drafts_end_with_the_output() -> None:
    scheduler = drafting(2)
    scheduler.running[0].num_tokens_left = 3  # type: ignore[misc]
    scheduler.running[1].num_tokens_left = 1  # type: ignore[misc]
    assert [len(item.draft) for item in scheduler.schedule()] == [2, 0]


def test_nobody_gives_way_for_a_draft() -> None:
    scheduler = drafting(3, blocks=4)
    step = scheduler.schedule()
    # 7 tokens and 4 drafts need a second block each; there is one to give.
    assert [len(item.draft) for item in step] == [4, 0, 0]
    assert scheduler.num_preemptions == 0
