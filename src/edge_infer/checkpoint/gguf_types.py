"""ggml tensor types by their number in a GGUF file, and dequantization of their blocks.

Layouts: https://github.com/ggml-org/ggml (``ggml-common.h``). Blocks are uint8 [count, bytes],
values float32 [count, block_size]; every multiplication and addition is rounded once, in the order
that makes the values equal to the reference bit for bit.
"""

from dataclasses import dataclass

import numpy as np

from edge_infer.checkpoint.packing import F32, U8, bf16_to_f32


@dataclass(frozen=True)
class GgmlType:
    """A tensor type: `block_size` weights in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


GGML_TYPES = {
    number: GgmlType(name, size, nbytes)
    for number, name, size, nbytes in (
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17),
    )
}


def split_q4(blocks: U8, header: int) -> U8:
    """Values 0..15 of a 32-weight block after `header` bytes: low nibbles first, then high."""
    packed = blocks[:, header : header + 16]
    q = np.empty((blocks.shape[0], 32), dtype=np.uint8)
    np.bitwise_and(packed, 15, out=q[:, :16])
    np.right_shift(packed, 4, out=q[:, 16:])
    return q


def half_at(blocks: U8, offset: int) -> F32:
    """The f16 at byte `offset` of every block as float32 [count, 1]."""
    bits = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return bits.view(np.float16).astype(np.float32)


def _f32(blocks: U8) -> F32:
    return np.ascontiguousarray(blocks).view(np.float32)


def _f16(blocks: U8) -> F32:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _bf16(blocks: U8) -> F32:
    return bf16_to_f32(np.ascontiguousarray(blocks).view(np.uint16))


def _q4_0(blocks: U8) -> F32:
    return half_at(blocks, 0) * (split_q4(blocks, 2).astype(np.float32) - np.float32(8))


def _q4_1(blocks: U8) -> F32:
    return half_at(blocks, 0) * split_q4(blocks, 4).astype(np.float32) + half_at(blocks, 2)


def _fifth_bits(blocks: U8, offset: int) -> U8:
    bits = np.unpackbits(blocks[:, offset : offset + 4], axis=1, bitorder="little")
    return bits << np.uint8(4)


def _q5_0(blocks: U8) -> F32:
    q = split_q4(blocks, 6) | _fifth_bits(blocks, 2)
    return half_at(blocks, 0) * (q.astype(np.float32) - np.float32(16))


def _q5_1(blocks: U8) -> F32:
    q = split_q4(blocks, 8) | _fifth_bits(blocks, 4)
    return half_at(blocks, 0) * q.astype(np.float32) + half_at(blocks, 2)


def _q8_0(blocks: U8) -> F32:
    return half_at(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


_IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)


def _iq4_nl(blocks: U8) -> F32:
    values: F32 = _IQ4_VALUES[split_q4(blocks, 2)]
    return half_at(blocks, 0) * values


def _shifted(packed: U8, width: int, shifts: tuple[int, ...], mask: int) -> U8:
    """Fields of `packed` in runs of `width` bytes: every byte of a run at each shift in turn."""
    runs = packed.reshape(packed.shape[0], -1, 1, width)
    steps = np.array(shifts, dtype=np.uint8).reshape(1, 1, -1, 1)
    return ((runs >> steps) & np.uint8(mask)).reshape(packed.shape[0], -1)


def _q2_k(blocks: U8) -> F32:
    count = blocks.shape[0]
    scales = blocks[:, :16]
    q = _shifted(blocks[:, 16:80], 32, (0, 2, 4, 6), 3).reshape(count, 16, 16)
    step = half_at(blocks, 80) * (scales & 15).astype(np.float32)
    low = half_at(blocks, 82) * (scales >> 4).astype(np.float32)
    return (step[..., None] * q.astype(np.float32) - low[..., None]).reshape(count, 256)


def _q3_k(blocks: U8) -> F32:
    count = blocks.shape[0]
    packed = blocks[:, 96:108]  # 16 scales of 6 bits: 8 bytes of low nibbles, 4 of high pairs
    low = _shifted(packed[:, :8], 8, (0, 4), 15)
    high = _shifted(packed[:, 8:], 4, (0, 2, 4, 6), 3)
    scales = (low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)
    third = _shifted(blocks[:, :32], 32, (0, 1, 2, 3, 4, 5, 6, 7), 1)
    q = _shifted(blocks[:, 32:96], 32, (0, 2, 4, 6), 3).astype(np.float32)
    q -= np.float32(4) * (third == 0).astype(np.float32)
    step = half_at(blocks, 108) * scales
    values: F32 = step[..., None] * q.reshape(count, 16, 16)
    return values.reshape(count, 256)


def _six_bit_pairs(packed: U8) -> tuple[U8, U8]:
    """The 8 scales and 8 minimums, 6 bits each, in the 12 bytes of Q4_K and Q5_K."""
    first, second, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (mixed & 15) | ((first >> 6) << 4)], axis=1)
    mins = np.concatenate([second & 63, (mixed >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, mins


def affine_steps(blocks: U8) -> tuple[F32, F32]:
    """The 8 scales and 8 subtracted minimums of every Q4_K or Q5_K block, float32 [count, 8]."""
    scales, mins = _six_bit_pairs(blocks[:, 4:16])
    step = half_at(blocks, 0) * scales.astype(np.float32)
    low = half_at(blocks, 2) * mins.astype(np.float32)
    return step, low


def _affine_k(blocks: U8, q: U8) -> F32:
    step, low = affine_steps(blocks)
    values = q.reshape(-1, 8, 32).astype(np.float32)
    return (step[..., None] * values - low[..., None]).reshape(-1, 256)


def split_q4_k(blocks: U8) -> U8:
    """Values 0..15 of Q4_K blocks, uint8 [count, 256]."""
    return _shifted(blocks[:, 16:144], 32, (0, 4), 15)


def _q4_k(blocks: U8) -> F32:
    return _affine_k(blocks, split_q4_k(blocks))


def _q5_k(blocks: U8) -> F32:
    fifth = _shifted(blocks[:, 16:48], 32, (0, 1, 2, 3, 4, 5, 6, 7), 1)
    return _affine_k(blocks, _shifted(blocks[:, 48:176], 32, (0, 4), 15) | (fifth << np.uint8(4)))


def _q6_k(blocks: U8) -> F32:
    count = blocks.shape[0]
    low = _shifted(blocks[:, :128], 64, (0, 4), 15)
    high = _shifted(blocks[:, 128:192], 32, (0, 2, 4, 6), 3)
    q = (low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    step = half_at(blocks, 208) * scales
    return (step[..., None] * q.reshape(count, 16, 16)).reshape(count, 256)


_DEQUANTIZERS = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def can_dequantize(kind: GgmlType) -> bool:
    """Whether :func:`dequantize_blocks` knows this type."""
    return kind.name in _DEQUANTIZERS


def dequantize_blocks(kind: GgmlType, blocks: U8) -> F32:
    """Float32 values [count, block_size] of blocks uint8 [count, block_bytes]."""
    return _DEQUANTIZERS[kind.name](blocks)
