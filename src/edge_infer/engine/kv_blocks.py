"""The pool of KV blocks. Blocks are numbers; their memory belongs to the native cache."""

from __future__ import annotations

from collections import deque


class BlockPool:
    """Free blocks in the order they were freed."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: deque[int] = deque(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-num_tokens // self.block_size)

    def can_grow(self, block_table: list[int], num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        return self.blocks_for(num_tokens) - len(block_table) <= len(self._free)

    def grow(self, block_table: list[int], num_tokens: int) -> None:
        """Extend a block table in place until it holds num_tokens tokens."""
        while len(block_table) * self.block_size < num_tokens:
            block_table.append(self._free.popleft())

    def release(self, block_table: list[int]) -> None:
        """Return all blocks of a table and empty it."""
        self._free.extend(block_table)
        block_table.clear()
