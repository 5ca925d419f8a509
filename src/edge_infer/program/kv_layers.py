"""What a model's layers keep in the KV cache, and which of them share block tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class KvLayer(NamedTuple):
    """One attention layer; a token sees `window` positions, itself included, 0 for all."""

    num_kv_heads: int
    head_dim: int
    window: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(num_kv_heads, head_dim)."""
        return (self.num_kv_heads, self.head_dim)


def layers_by_window(layers: Sequence[KvLayer]) -> dict[int, list[int]]:
    """Indices of the layers of each window, full attention (0) first, then the shortest."""
    groups: dict[int, list[int]] = {window: [] for window in sorted({x.window for x in layers})}
    for index, layer in enumerate(layers):
        groups[layer.window].append(index)
    return groups
