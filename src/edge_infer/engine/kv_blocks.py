"""The pool of KV blocks: who holds them, and what computed content they still keep.

Blocks are numbers; their memory belongs to the native cache. A full block that was computed is
published under a key of its content, and later sequences with the same tokens take it instead of
computing them again. A block that nobody holds keeps its content until the pool needs it: blocks
without content go first, then the least recently used.

Layers with a sliding window have a pool of their own. A sequence gives up its blocks there once no
later token sees them, and a prefix can be taken when the blocks that its last window covers are
still there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence as Seq

import numpy as np

EMPTY_KEY = b""
FREED = -1  # in a block table: given up, no later token sees it


def root_key(cache_salt: str) -> bytes:
    """What the keys of a sequence start from: sequences with other salts share nothing."""
    return hashlib.sha256(cache_salt.encode()).digest() if cache_salt else EMPTY_KEY


def block_key(parent: bytes, token_ids: Seq[int]) -> bytes:
    """Key of a full block: SHA-256 over its tokens and the key of everything before them."""
    return hashlib.sha256(parent + np.array(token_ids, np.int32).tobytes()).digest()


class BlockPool:
    """Blocks with reference counts, and the keys of those whose content is known."""

    def __init__(self, num_blocks: int, block_size: int, window: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.window = window  # positions that a token sees, itself included; 0 for all
        self._references = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        self._published: dict[bytes, int] = {}
        # Blocks nobody holds, the next one to take first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks nobody holds, whatever content they keep."""
        return len(self._free)

    @property
    def num_published(self) -> int:
        """Blocks whose content can be taken."""
        return len(self._published)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-num_tokens // self.block_size)

    def first_visible(self, position: int) -> int:
        """The first block that a token at this position, or a later one, sees."""
        return max(0, position - self.window + 1) // self.block_size if self.window else 0

    def can_grow(self, block_table: list[int], num_tokens: int, shared: Seq[int] = ()) -> bool:
        """Whether `share` of these blocks and then `grow` would succeed."""
        unheld = sum(not self._references[block] for block in shared)
        needed = self.blocks_for(num_tokens) - len(block_table) - len(shared)
        return needed + unheld <= len(self._free)

    def grow(self, block_table: list[int], num_tokens: int) -> None:
        """Extend a block table in place until it holds num_tokens tokens."""
        while len(block_table) * self.block_size < num_tokens:
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            block_table.append(block)

    def find(self, keys: Seq[bytes]) -> list[int]:
        """The published blocks of the longest prefix of these keys."""
        blocks = []
        for key in keys:
            block = self._published.get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def usable(self, keys: Seq[bytes]) -> int:
        """The most of these blocks that a sequence can begin with.

        Those that its next token sees must be published.
        """
        if not self.window:
            return len(self.find(keys))
        length = len(keys)
        index = length - 1
        while index >= self.first_visible(length * self.block_size):
            if keys[index] not in self._published:
                length = index  # every longer prefix needs this block
            index -= 1
        return length

    def share(self, block_table: list[int], blocks: Seq[int]) -> None:
        """Append published blocks to a table; they are read, never written."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1
            block_table.append(block)

    def publish(self, block: int, key: bytes) -> None:
        """Let others find a block whose every token has been computed."""
        if self._keys[block] is None and key not in self._published:
            self._keys[block] = key
            self._published[key] = block

    def slide(self, block_table: list[int], position: int) -> None:
        """Give up the blocks of a table that no token from this position on sees."""
        index = min(self.first_visible(position), len(block_table)) - 1
        while index >= 0 and (block := block_table[index]) != FREED:
            block_table[index] = FREED  # first: an interrupt here must not drop a block twice
            self._drop(block)
            index -= 1

    def release(self, block_table: list[int]) -> None:
        """Give up all blocks of a table and empty it."""
        # The last block first: the head of a prefix is worth more than its tail.
        for block in reversed(block_table):
            if block == FREED:
                break
            self._drop(block)
        block_table.clear()

    def _drop(self, block: int) -> None:
        self._references[block] -= 1
        if not self._references[block]:
            self._free[block] = None
            if self._keys[block] is None:
                self._free.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            self._keys[block] = None
            del self._published[key]
