"""How large a KV cache is: what one sequence needs of each group, and how bytes are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_infer import _native
from edge_infer.engine.options import EngineOptions
from edge_infer.program.builder import kv_type
from edge_infer.program.kv_layers import KvLayer, layers_by_window


@dataclass(frozen=True)
class KvGroupPlan:
    """The layers with one window, and the blocks that they share."""

    window: int  # positions that a token sees; 0 for all
    layers: Sequence[int]
    block_bytes: int  # one block over these layers
    sequence_blocks: int  # the most that one sequence holds
    num_blocks: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.num_blocks * self.block_bytes


class KvDemand:
    """What sequences need of the KV cache, by group."""

    def __init__(self, layers: Sequence[KvLayer], options: EngineOptions) -> None:
        self._options = options
        self._groups = layers_by_window(layers)
        self._block_bytes = [
            _native.KvCache.block_bytes(
                [layers[i].shape for i in group], options.block_size, kv_type(options.kv_dtype)
            )
            for group in self._groups.values()
        ]

    def sequence_blocks(self, positions: int) -> list[int]:
        """The most blocks of each group that a sequence of that many positions holds.

        With a window these are what the first token of a step sees and the step's own tokens,
        wherever in a block they begin.
        """
        size = self._options.block_size
        every = -(-positions // size)
        blocks = []
        for window in self._groups:
            span = window - 1 + self._options.max_num_batched_tokens
            blocks.append(min(every, (span + size - 2) // size + 1) if window else every)
        return blocks

    def sequence_bytes(self, positions: int) -> int:
        """Bytes of those blocks."""
        return sum(
            n * size
            for n, size in zip(self.sequence_blocks(positions), self._block_bytes, strict=True)
        )

    def share_out(
        self, num_bytes: int, positions: int, max_sequences: int | None
    ) -> tuple[KvGroupPlan, ...]:
        """Groups that fill num_bytes for sequences of that many positions.

        At most max_sequences of them, any number when it is None.
        """
        sequence_blocks = self.sequence_blocks(positions)
        sequence_bytes = self.sequence_bytes(positions)
        counts = [n * num_bytes // sequence_bytes for n in sequence_blocks]
        left = num_bytes - sum(n * size for n, size in zip(counts, self._block_bytes, strict=True))
        plans = []
        for i, (window, layers) in enumerate(self._groups.items()):
            size = self._block_bytes[i]
            extra = left // size
            left -= extra * size
            count = counts[i] + extra
            if max_sequences is not None:
                count = min(count, max_sequences * sequence_blocks[i])
            plans.append(KvGroupPlan(window, tuple(layers), size, sequence_blocks[i], count))
        return tuple(plans)


def ring_tables(groups: Sequence[KvGroupPlan], num_sequences: int, width: int) -> NDArray[np.int32]:
    """Block tables for steps without a scheduler, int32 [num_sequences, groups, width].

    Every sequence has its own blocks, in order; those of a window come round again once no
    later token sees them. Raises ValueError when a group has too few.
    """
    tables = np.empty((num_sequences, len(groups), width), np.int32)
    for g, group in enumerate(groups):
        each = min(width, group.sequence_blocks)
        if each * num_sequences > group.num_blocks:
            raise ValueError(
                f"{num_sequences} sequences of {width} blocks need {each * num_sequences} blocks, "
                f"the cache holds {group.num_blocks}"
            )
        first = np.arange(num_sequences, dtype=np.int32)[:, None] * each
        tables[:, g] = first + np.arange(width, dtype=np.int32) % each
    return tables
