"""The packed weight layout and 16-bit float conversions, on numpy arrays.

Rows (output channels) lie in blocks of 16. One 64-byte line of int4 data holds 16 rows x 8 values
of K: the low nibble of byte ``4*r + j`` is (row r, k + j), the high nibble (row r, k + 4 + j). One
line of int8 data holds 16 rows x 4 values of K: byte ``4*r + j`` is (row r, k + j). The layout is
shared with ``native/kernels/types.h``.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

ROW_BLOCK = 16
LINE_BYTES = 64

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
F32 = NDArray[np.float32]
T = TypeVar("T", bound=np.generic)


def padded_rows(n: int) -> int:
    """Round a row count up to whole blocks of 16."""
    return -(-n // ROW_BLOCK) * ROW_BLOCK


def pad_rows(rows: NDArray[T], fill: int = 0) -> NDArray[T]:
    """Append rows of `fill` until the first dimension is a multiple of 16."""
    missing = padded_rows(rows.shape[0]) - rows.shape[0]
    if not missing:
        return rows
    tail = np.full((missing, *rows.shape[1:]), fill, dtype=rows.dtype)
    return np.concatenate([rows, tail])


def pack_int4(q: U8) -> U8:
    """Pack values 0..15 of shape [N, K] into lines [ceil(N/16), K/8, 64]; K is a multiple of 8."""
    k = q.shape[1]
    if k % 8:
        raise ValueError(f"K = {k} is not a multiple of 8")
    q = pad_rows(q)
    halves = q.reshape(-1, ROW_BLOCK, k // 8, 2, 4)
    nibbles = halves[:, :, :, 0] | (halves[:, :, :, 1] << np.uint8(4))  # [N/16, 16, K/8, 4]
    return np.ascontiguousarray(nibbles.transpose(0, 2, 1, 3)).reshape(-1, k // 8, LINE_BYTES)


def unpack_int4(lines: U8, n: int | None = None) -> U8:
    """Undo :func:`pack_int4`: lines [N/16, K/8, 64] to values 0..15 [N, K], first `n` rows."""
    blocks, steps, _ = lines.shape
    nibbles = lines.reshape(blocks, steps, ROW_BLOCK, 4).transpose(0, 2, 1, 3)
    q = np.empty((blocks, ROW_BLOCK, steps, 2, 4), dtype=np.uint8)
    np.bitwise_and(nibbles, 15, out=q[:, :, :, 0])
    np.right_shift(nibbles, 4, out=q[:, :, :, 1])
    return q.reshape(blocks * ROW_BLOCK, steps * 8)[:n]


def pack_int8(q: U8) -> U8:
    """Pack bytes (value + 128) of shape [N, K] into lines [ceil(N/16), K/4, 64]."""
    k = q.shape[1]
    if k % 4:
        raise ValueError(f"K = {k} is not a multiple of 4")
    q = pad_rows(q)
    lines = q.reshape(-1, ROW_BLOCK, k // 4, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(lines).reshape(-1, k // 4, LINE_BYTES)


def unpack_int8(lines: U8, n: int | None = None) -> U8:
    """Undo :func:`pack_int8`: lines [N/16, K/4, 64] to bytes (value + 128) [N, K]."""
    blocks, steps, _ = lines.shape
    q = lines.reshape(blocks, steps, ROW_BLOCK, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(q).reshape(blocks * ROW_BLOCK, steps * 4)[:n]


def pack_groups(values: NDArray[T]) -> NDArray[T]:
    """Bring scales, mins or zeros from [N, K/G] to [ceil(N/16), K/G, 16], padding rows 0."""
    values = pad_rows(values)
    return np.ascontiguousarray(values.reshape(-1, ROW_BLOCK, values.shape[1]).transpose(0, 2, 1))


def unpack_groups(packed: NDArray[T], n: int | None = None) -> NDArray[T]:
    """Undo :func:`pack_groups`: [N/16, K/G, 16] to [N, K/G]."""
    blocks, groups, _ = packed.shape
    return np.ascontiguousarray(packed.transpose(0, 2, 1)).reshape(blocks * ROW_BLOCK, groups)[:n]


def f32_to_bf16(x: F32) -> U16:
    """Round float32 to bf16 bits, nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> 16
    out = rounded.astype(np.uint16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        out[nan] = (bits[nan] >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40)
    return out


def bf16_to_f32(bits: U16) -> F32:
    """Widen bf16 bits to float32 (exact)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def half_to_f32(bits: U16, scale_type: str) -> F32:
    """Widen 16-bit scales or mins (``f16`` or ``bf16`` bits) to float32 (exact)."""
    if scale_type == "bf16":
        return bf16_to_f32(bits)
    return bits.view(np.float16).astype(np.float32)


def f32_to_half(x: F32, scale_type: str) -> U16:
    """Round float32 to the bits of `scale_type`, nearest even; overflow gives infinity."""
    if scale_type == "bf16":
        return f32_to_bf16(x)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x, dtype=np.float32).astype(np.float16).view(np.uint16)
