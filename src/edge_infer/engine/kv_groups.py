"""The block pools of a model: one for each group of layers that share block tables.

Layers with full attention are one group, those with the same sliding window another. A sequence
has a block table in each; block i of every table is for the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from edge_infer.engine.kv_blocks import FREED, BlockPool


@dataclass(frozen=True)
class Prefix:
    """Computed blocks that a sequence can begin with."""

    num_blocks: int = 0
    # By group, the blocks of those that the next token sees: the last ones of the prefix.
    blocks: list[list[int]] = field(default_factory=list)


class KvGroups:
    """Pools with the same block size, used together."""

    def __init__(self, pools: Iterable[BlockPool]) -> None:
        self.pools = list(pools)
        self.block_size = self.pools[0].block_size
        self._windowed = [(i, pool) for i, pool in enumerate(self.pools) if pool.window]

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups."""
        return sum(pool.num_blocks for pool in self.pools)

    @property
    def num_free(self) -> int:
        """Blocks of all groups that nobody holds, whatever content they keep."""
        return sum(pool.num_free for pool in self.pools)

    def find(self, keys: Seq[bytes]) -> Prefix:
        """The longest prefix of these keys of which every group has the blocks it needs."""
        if len(self.pools) == 1 and not self._windowed:
            blocks = self.pools[0].find(keys)
            return Prefix(len(blocks), [blocks])
        length = len(keys)
        while True:
            shortest = min(pool.usable(keys[:length]) for pool in self.pools)
            if shortest == length:
                break
            length = shortest
        size = self.block_size
        return Prefix(
            length,
            [pool.find(keys[pool.first_visible(length * size) : length]) for pool in self.pools],
        )

    def start(self, shared: Prefix, num_tokens: int) -> list[list[int]] | None:
        """Tables that begin with a prefix and hold num_tokens tokens; None when blocks lack."""
        blocks = shared.blocks or [[] for _ in self.pools]
        tables = [[FREED] * (shared.num_blocks - len(taken)) for taken in blocks]
        groups = list(zip(self.pools, tables, blocks, strict=True))
        if not all(pool.can_grow(table, num_tokens, taken) for pool, table, taken in groups):
            return None
        for pool, table, taken in groups:
            pool.share(table, taken)
            pool.grow(table, num_tokens)
        return tables

    def can_grow(self, tables: Seq[list[int]], num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        for index, pool in enumerate(self.pools):
            if not pool.can_grow(tables[index], num_tokens):
                return False
        return True

    def grow(self, tables: Seq[list[int]], num_tokens: int) -> None:
        """Extend a sequence's tables until they hold num_tokens tokens."""
        for index, pool in enumerate(self.pools):
            pool.grow(tables[index], num_tokens)

    def publish(self, tables: Seq[list[int]], index: int, key: bytes) -> None:
        """Let others find the block of each table whose every token has been computed."""
        for pool, table in zip(self.pools, tables, strict=True):
            pool.publish(table[index], key)

    def slide(self, tables: Seq[list[int]], position: int) -> None:
        """Give up the blocks that no token from this position on sees."""
        for index, pool in self._windowed:
            pool.slide(tables[index], position)

    def release(self, tables: list[list[int]]) -> None:
        """Give up all blocks of a sequence."""
        for pool, table in zip(self.pools, tables, strict=False):
            pool.release(table)
        tables.clear()
