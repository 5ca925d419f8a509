"""Groups of layers with and without a window: what is kept, given up and found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_infer.engine.kv_blocks import EMPTY_KEY, FREED, BlockPool, block_key
from edge_infer.engine.kv_groups import KvGroups
from edge_infer.engine.kv_plan import KvDemand, ring_tables
from edge_infer.engine.options import EngineOptions
from edge_infer.engine.scheduler import Scheduler
from edge_infer.program.kv_layers import KvLayer, layers_by_window

SIZE = 8  # tokens of a block

_numbers = count()


class FakeLookup:
    """Proposes as much as it may."""

    def propose(self, _: object, limit: int) -> list[int]:
        return [7] * limit


@dataclass(eq=False)
class FakeSequence:
    """Just what the scheduler reads of a sequence, with real tokens."""

    tokens: list[int]
    num_computed: int = 0
    block_tables: list[list[int]] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))
    priority: int = 0
    num_published: int = 0
    num_cached_tokens: int | None = None
    lookup: FakeLookup | None = None
    num_tokens_left: int = 100

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_pending(self) -> int:
        return self.num_tokens - self.num_computed

    def block_keys(self, number: int, size: int) -> list[bytes]:
        keys = [EMPTY_KEY]
        for index in range(number):
            keys.append(block_key(keys[-1], self.tokens[index * size : (index + 1) * size]))
        return keys[1:]


class FakeCache:
    """What each slot of each group holds; computing checks that what a token sees is there."""

    def __init__(self, blocks: KvGroups) -> None:
        self.blocks = blocks
        self._slots: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def compute(self, sequence: FakeSequence, num_tokens: int) -> None:
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        for group, (pool, table) in enumerate(
            zip(self.blocks.pools, sequence.block_tables, strict=True)
        ):
            for position in range(start, end):
                self._slots[self._slot(group, table, position)] = self._text(sequence, position)
            first = max(0, start - pool.window + 1) if pool.window else 0
            for position in range(first, end):
                slot = self._slot(group, table, position)
                assert self._slots[slot] == self._text(sequence, position)

    @staticmethod
    def _slot(group: int, table: list[int], position: int) -> tuple[int, int, int]:
        block = table[position // SIZE]
        assert block != FREED, "a token would see a block that was given up"
        return group, block, position % SIZE

    @staticmethod
    def _text(sequence: FakeSequence, position: int) -> tuple[int, ...]:
        """What a cache entry depends on: its token and everything before it."""
        return tuple(sequence.tokens[: position + 1])


def demand(windows: Sequence[int], tokens: int) -> KvDemand:
    layers = [KvLayer(1, 8, window) for window in windows]
    options = EngineOptions(block_size=SIZE, max_num_seqs=1, max_num_batched_tokens=tokens)
    return KvDemand(layers, options)


def make(windows: Sequence[int], *, context: int, extra: int, seqs: int, tokens: int) -> Scheduler:
    """A scheduler whose pools hold one context and `extra` blocks more."""
    needs = zip(windows, demand(windows, tokens).sequence_blocks(context), strict=True)
    pools = [BlockPool(need + extra, SIZE, window) for window, need in needs]
    return Scheduler(
        KvGroups(pools), max_num_seqs=seqs, max_num_batched_tokens=tokens, max_draft_tokens=4
    )


def run_step(scheduler: Scheduler, cache: FakeCache) -> int:
    """Schedule, compute and sample; returns the tokens computed."""
    total = 0
    step = scheduler.schedule()
    for item in step:
        sequence = item.sequence
        complete = item.num_tokens == sequence.num_pending
        cache.compute(sequence, item.num_tokens)
        sequence.num_computed += item.num_tokens
        total += item.num_tokens
        if complete:
            sequence.tokens.append(sequence.num_tokens % 5)
        scheduler.computed(sequence)
    return total


def run(scheduler: Scheduler, cache: FakeCache, sequence: FakeSequence, until: int) -> int:
    """Run a sequence to a length, then remove it; returns the tokens computed."""
    scheduler.add(sequence)
    total = 0
    while sequence.num_tokens < until:
        total += run_step(scheduler, cache)
    scheduler.remove(sequence)
    return total


def test_full_attention_is_the_first_group() -> None:
    windows = [16, 0, 8, 16]
    layers = [KvLayer(1, 8, window) for window in windows]
    assert layers_by_window(layers) == {0: [1], 8: [2], 16: [0, 3]}


def test_blocks_behind_the_window_are_given_up() -> None:
    pool = BlockPool(8, SIZE, window=10)
    table: list[int] = []
    pool.grow(table, 40)
    pool.slide(table, 16)  # sees 7 and on
    assert FREED not in table
    pool.slide(table, 17)  # sees 8 and on
    assert [block == FREED for block in table] == [True, False, False, False, False]
    assert pool.num_free == 4
    pool.slide(table, 33)
    assert [block == FREED for block in table] == [True, True, True, False, False]
    pool.release(table)
    assert pool.num_free == 8


def test_a_prefix_needs_the_blocks_of_its_last_window() -> None:
    pool = BlockPool(8, SIZE, window=10)
    table: list[int] = []
    pool.grow(table, 6 * SIZE)
    keys = [bytes([i]) for i in range(6)]
    for index in (0, 2, 3, 5):
        pool.publish(table[index], keys[index])
    # With n blocks the next token is 8n and sees 8n - 9 and on: blocks n - 2 and n - 1.
    assert [pool.usable(keys[:n]) for n in range(7)] == [0, 1, 1, 1, 4, 4, 4]


def test_a_windowed_sequence_holds_few_blocks_however_long() -> None:
    scheduler = make([0, 20], context=400, extra=0, seqs=1, tokens=32)
    cache = FakeCache(scheduler.blocks)
    full, sliding = scheduler.blocks.pools
    assert (full.num_blocks, sliding.num_blocks) == (50, 8)
    sequence = FakeSequence([1] * 300)
    scheduler.add(sequence)
    while sequence.num_tokens < 390:
        run_step(scheduler, cache)
        assert sliding.num_blocks - sliding.num_free <= (8 if sequence.num_pending > 1 else 4)
    assert full.num_blocks - full.num_free == 49


def test_prompts_that_differ_at_the_tail_compute_the_tail() -> None:
    """CASES 14: windowed layers must not force the whole prompt to be computed again."""
    scheduler = make([0, 20], context=400, extra=10, seqs=2, tokens=64)
    cache = FakeCache(scheduler.blocks)
    shared = [i % 7 for i in range(200)]
    assert run(scheduler, cache, FakeSequence([*shared, *[1] * 10]), 215) == 214
    other = FakeSequence([*shared, *[2] * 10])
    assert run(scheduler, cache, other, 215) == 14  # 10 of the tail, 4 of 5 sampled
    assert other.num_cached_tokens == 200


def test_a_turn_goes_on_where_the_last_one_ended() -> None:
    scheduler = make([0, 20], context=400, extra=0, seqs=1, tokens=32)
    cache = FakeCache(scheduler.blocks)
    first = FakeSequence([i % 7 for i in range(150)])
    run(scheduler, cache, first, 200)
    second = FakeSequence([*first.tokens, 9, 9])
    run(scheduler, cache, second, 203)
    assert second.num_cached_tokens == 192  # 199 tokens were computed, in blocks of 8


def test_what_slid_out_and_went_is_computed_again() -> None:
    scheduler = make([0, 20], context=400, extra=0, seqs=1, tokens=32)
    cache = FakeCache(scheduler.blocks)
    prompt = [i % 7 for i in range(80)]
    run(scheduler, cache, FakeSequence(list(prompt)), 300)
    again = FakeSequence(list(prompt))
    run(scheduler, cache, again, 81)  # the cache checks that what it sees is its own
    assert again.num_cached_tokens == 0


def test_memory_of_a_window_does_not_grow_with_the_context() -> None:
    need = demand([0, 512], 512)
    assert need.sequence_blocks(8192) == [1024, 129]
    assert need.sequence_blocks(256) == [32, 32]
    groups = need.share_out(10 * need.sequence_bytes(8192) + 700, 8192, None)
    assert [group.num_blocks for group in groups] == [10 * 1024 + 2, 10 * 129]
    groups = need.share_out(10 * need.sequence_bytes(8192), 8192, 3)
    assert [group.num_blocks for group in groups] == [3 * 1024, 3 * 129]


def test_ring_tables_never_reuse_a_block_that_is_seen() -> None:
    need = demand([0, 20], 16)
    groups = need.share_out(2 * need.sequence_bytes(200), 200, None)
    tables = ring_tables(groups, 2, 25)
    assert tables.shape == (2, 2, 25)
    for start in range(200 - 16):
        seen = range(max(0, start - 19) // SIZE, (start + 15) // SIZE + 1)
        blocks = [int(tables[s, 1, b]) for s in range(2) for b in seen]
        assert len(blocks) == len(set(blocks))
        assert max(blocks) < groups[1].num_blocks


actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 90), st.integers(0, 90), st.booleans()),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0), st.just(False)),
        st.tuples(st.just("cancel"), st.integers(0, 5), st.just(0), st.just(False)),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=300)
@given(
    actions,
    st.sampled_from([[0], [0, 5], [0, 8, 30], [13], [9, 40], [0, 200]]),
    st.integers(0, 12),
    st.integers(1, 4),
    st.integers(4, 40),
    st.booleans(),
)
def test_nothing_leaks_and_nothing_seen_is_given_up(
    events: list[tuple[str, int, int, bool]],
    windows: list[int],
    extra: int,
    seqs: int,
    tokens: int,
    caching: bool,
) -> None:
    """Random arrivals, cancels and steps; FakeCache checks every position that a token sees."""
    scheduler = make(windows, context=120, extra=extra, seqs=seqs, tokens=tokens)
    scheduler.prefix_caching = caching
    cache = FakeCache(scheduler.blocks)
    bounds = demand(windows, tokens).sequence_blocks(120)
    live: list[FakeSequence] = []

    def check() -> None:
        for group, pool in enumerate(scheduler.blocks.pools):
            held = [s.block_tables[group] for s in live if s.block_tables]
            blocks = {b for table in held for b in table} - {FREED}
            assert pool.num_free == pool.num_blocks - len(blocks)
            for table in held:
                assert len(table) - table.count(FREED) <= bounds[group]

    def step() -> None:
        assert run_step(scheduler, cache), "a step without work would hang"
        for sequence in [s for s in live if s.num_tokens >= 110]:
            scheduler.remove(sequence)
            live.remove(sequence)

    for what, first, second, drafts in events:
        if what == "add":
            # Beginnings are shared, tails are not always.
            text = [i % 7 for i in range(first)] + [8 + len(live) % 2] * min(second, 100 - first)
            lookup = FakeLookup() if drafts else None
            live.append(FakeSequence(text, lookup=lookup))
            scheduler.add(live[-1])
        elif what == "cancel" and live:
            scheduler.remove(live.pop(first % len(live)))
        elif what == "step":
            for _ in range(first):
                if scheduler.has_work():
                    step()
        check()
    for _ in range(5000):
        if not scheduler.has_work():
            break
        step()
        check()
    assert not scheduler.has_work()
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks
