"""Tensors of a source checkpoint, read in pieces: what importers give to the conversion."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edge_infer.checkpoint.gguf_types import (
    GgmlType,
    affine_steps,
    dequantize_blocks,
    split_q4,
    split_q4_k,
)
from edge_infer.checkpoint.packing import F32, U8, bf16_to_f32
from edge_infer.checkpoint.quantizers.rtn import Quantized, stored_scales

# ggml types whose integers are kept: format and form, in groups of 32. The first three keep their
# values exactly; Q4_K's scales and minimums are products, rounded to 16 bits once.
DIRECT_TYPES = {
    "Q4_0": ("int4", "symmetric"),
    "Q4_1": ("int4", "min"),
    "Q8_0": ("int8", "symmetric"),
    "Q4_K": ("int4", "min"),
}
EXACT_TYPES = ("Q4_0", "Q4_1", "Q8_0")


class SourceTensor(Protocol):
    """A tensor under its HF name. Rows and columns of ``read`` are those of shape [N, K]."""

    @property
    def name(self) -> str:
        """The full HF name."""
        ...

    @property
    def kind(self) -> str:
        """The stored type: a safetensors dtype or a ggml type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, slowest first."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes in the source file."""
        ...

    def read(self, r0: int, r1: int, c0: int, c1: int) -> F32:
        """Float32 weights of rows r0..r1 and columns c0..c1."""
        ...


@dataclass(frozen=True)
class DenseSource:
    """Stored floats. `kind` is a safetensors dtype; `order` maps each row to a stored row."""

    name: str
    kind: str
    shape: tuple[int, ...]
    view: np.ndarray  # [N, K] for two dims, else [elements, 1]; bf16 as uint16
    order: np.ndarray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes in the source file."""
        return int(self.view.nbytes)

    def raw(self, r0: int, r1: int, c0: int, c1: int) -> np.ndarray:
        """The stored values of a piece, rows in their final order."""
        if self.order is None:
            return self.view[r0:r1, c0:c1]
        return self.view[self.order[r0:r1], c0:c1]

    def read(self, r0: int, r1: int, c0: int, c1: int) -> F32:
        """Float32 weights of a piece."""
        raw = self.raw(r0, r1, c0, c1)
        return bf16_to_f32(raw) if self.kind == "BF16" else raw.astype(np.float32)


@dataclass(frozen=True)
class BlockSource:
    """A ggml block-quantized matrix; `blocks` is uint8 [N, K/block_size, block_bytes]."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    blocks: U8
    order: np.ndarray | None = None

    @property
    def kind(self) -> str:
        """The ggml type's name."""
        return self.type.name

    @property
    def nbytes(self) -> int:
        """Bytes in the source file."""
        return int(self.blocks.nbytes)

    def read(self, r0: int, r1: int, c0: int, c1: int) -> F32:
        """Dequantized float32 weights of a piece; columns at whole blocks."""
        blocks, rows = self._piece(r0, r1, c0, c1)
        return dequantize_blocks(self.type, blocks).reshape(rows, -1)

    def read_direct(self, r0: int, r1: int, c0: int, c1: int, scale_type: str) -> Quantized:
        """The stored integers of a piece of one of DIRECT_TYPES, with its scales and mins."""
        blocks, rows = self._piece(r0, r1, c0, c1)
        if self.kind == "Q4_K":
            step, low = affine_steps(blocks)
            return Quantized(
                split_q4_k(blocks).reshape(rows, -1),
                stored_scales(step, scale_type).reshape(rows, -1),
                stored_scales(-low, scale_type).reshape(rows, -1),
            )
        scales = half_at_bits(blocks, 0).reshape(rows, -1)
        if self.kind == "Q8_0":
            q = (blocks[:, 2:] ^ np.uint8(128)).reshape(rows, -1)  # int8 + 128
            return Quantized(q, scales, None)
        if self.kind == "Q4_0":
            return Quantized(split_q4(blocks, 2).reshape(rows, -1), scales, None)
        mins = half_at_bits(blocks, 2).reshape(rows, -1)
        return Quantized(split_q4(blocks, 4).reshape(rows, -1), scales, mins)

    def _piece(self, r0: int, r1: int, c0: int, c1: int) -> tuple[U8, int]:
        size = self.type.block_size
        columns = slice(c0 // size, c1 // size)
        rows = slice(r0, r1) if self.order is None else self.order[r0:r1]
        return self.blocks[rows, columns].reshape(-1, self.type.block_bytes), r1 - r0


def half_at_bits(blocks: U8, offset: int) -> np.ndarray:
    """The 16 bits at byte `offset` of every block as uint16 [count]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.uint16).reshape(-1)


@dataclass
class ImportedModel:
    """What an importer found: configuration, tensors under HF names, files to carry over."""

    origin: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: dict[str, SourceTensor]
    files: list[Path] = field(default_factory=list)
    gguf_metadata: dict[str, Any] | None = None
    licence: str | None = None
    notes: list[str] = field(default_factory=list)
