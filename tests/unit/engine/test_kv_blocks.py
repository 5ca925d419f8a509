"""The block pool: references, published content and what is given up first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_infer.engine.kv_blocks import EMPTY_KEY, BlockPool, block_key, root_key


def keys_of(*blocks: list[int], root: bytes = EMPTY_KEY) -> list[bytes]:
    keys: list[bytes] = []
    for block in blocks:
        keys.append(block_key(keys[-1] if keys else root, block))
    return keys


def published(pool: BlockPool, keys: list[bytes]) -> list[int]:
    """A table of blocks published under these keys, still held."""
    table: list[int] = []
    pool.grow(table, len(keys) * pool.block_size)
    for block, key in zip(table, keys, strict=True):
        pool.publish(block, key)
    return table


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


def test_a_key_is_of_everything_before_it() -> None:
    assert keys_of([1, 2], [3, 4])[1] != keys_of([2, 1], [3, 4])[1]
    assert keys_of([1, 2]) != keys_of([1, 2], root=root_key("tenant"))
    assert root_key("a") != root_key("b")
    assert root_key("") == EMPTY_KEY


def test_content_is_found_while_held_and_after() -> None:
    pool = BlockPool(4, 2)
    keys = keys_of([1, 2], [3, 4])
    table = published(pool, keys)
    held = list(table)
    assert pool.find(keys) == held
    pool.release(table)
    assert pool.find(keys) == held
    assert pool.find([*keys, b"other"]) == held
    assert pool.find([b"other", *keys]) == []


def test_shared_blocks_are_freed_by_the_last_holder() -> None:
    pool = BlockPool(4, 2)
    keys = keys_of([1, 2], [3, 4])
    first = published(pool, keys)
    second: list[int] = []
    pool.share(second, pool.find(keys))
    pool.release(first)
    assert pool.num_free == 2
    pool.release(second)
    assert pool.num_free == 4


def test_taking_an_unheld_block_needs_it_to_be_free() -> None:
    pool = BlockPool(3, 2)
    keys = keys_of([1, 2], [3, 4])
    table = published(pool, keys)
    pool.release(table)
    shared = pool.find(keys)
    assert pool.can_grow([], 6, shared)
    assert not pool.can_grow([], 8, shared)
    pool.share(table, shared)
    pool.grow(table, 6)
    assert pool.num_free == 0


def test_blocks_without_content_go_first_then_the_oldest_tail() -> None:
    pool = BlockPool(4, 2)
    old, young = keys_of([1, 2], [3, 4]), keys_of([5, 6])
    old_table, young_table = published(pool, old), published(pool, young)
    pool.release(old_table)
    pool.release(young_table)
    table: list[int] = []
    pool.grow(table, 2)  # the fourth block, never used
    assert pool.num_published == 3
    pool.grow(table, 4)
    assert len(pool.find(old)) == 1  # its tail went
    pool.grow(table, 6)
    assert pool.find(old) == []
    assert len(pool.find(young)) == 1


def test_equal_content_is_published_once() -> None:
    pool = BlockPool(4, 2)
    keys = keys_of([1, 2])
    first, second = published(pool, keys), published(pool, keys)
    assert pool.find(keys) == first
    pool.release(second)
    pool.release(first)
    assert pool.find(keys)
    assert pool.num_published == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=60))
def test_every_block_is_held_or_free(actions: list[tuple[int, int]]) -> None:
    """Whatever tables share, grow and release, blocks are neither lost nor handed out twice."""
    pool = BlockPool(8, 2)
    tables: list[list[int]] = [[], [], [], []]
    for owner, count in actions:
        table = tables[owner]
        if table:
            pool.release(table)
            continue
        keys = keys_of(*([owner % 2, i] for i in range(count)))
        shared = pool.find(keys)
        if not pool.can_grow(table, count * 2, shared):
            continue
        pool.share(table, shared)
        pool.grow(table, count * 2)
        written = table[len(shared) :]
        others = [b for t in tables if t is not table for b in t]
        assert not set(written) & set(others)
        for block, key in zip(table, keys, strict=True):
            pool.publish(block, key)
        assert pool.num_free == 8 - len({b for t in tables for b in t})
    for table in tables:
        pool.release(table)
    assert pool.num_free == 8
