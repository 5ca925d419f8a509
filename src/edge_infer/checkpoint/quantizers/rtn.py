"""Round-to-nearest quantization with a small least-squares search of each group's scale.

Groups are the last axis: x is float32 [..., G]. Every function returns values that were rounded
against the stored 16-bit scale, not against the exact one, so what is written is what was measured.
"""

from dataclasses import dataclass

import numpy as np

from edge_infer.checkpoint.packing import F32, U8, U16, f32_to_half, half_to_f32

# First guesses of a symmetric scale are max / d, where max is the signed value of largest
# magnitude: -8 puts it on the end of the longer side of -8..7, 7 on that of the shorter side, -8.8
# clips it. More guesses gain less than 1.5% of the error.
_SYMMETRIC_DIVISORS = (-8.0, 7.0, -8.8)
# Fractions of the range max - min that a first guess of a minimum form covers.
_MINIMUM_SHRINKS = (1.0, 0.92, 0.84)

# Below 2**-20 an f16 scale keeps fewer than 5 significant bits, bf16 its 8.
_F16_SMALLEST = 2.0**-20
# Outside these, sums of squares or reciprocals leave float32. Smaller scales count as 0.
_LARGEST = 1e15
_SMALLEST = 1e-30


class WeightError(ValueError):
    """Weights that no 16-bit scale can represent: not finite, or too large."""


class ScaleRangeError(ValueError):
    """A scale or minimum does not fit f16 well; bf16 must be used for the tensor."""


@dataclass(frozen=True)
class Quantized:
    """Quantized rows: q uint8 [N, K]; scales and offsets (mins) uint16 bits [N, K/G]."""

    q: U8
    scales: U16
    offsets: U16 | None


def quantize_rows(x: F32, format: str, form: str, group_size: int, scale_type: str) -> Quantized:
    """Quantize float32 rows [N, K] to ``int4`` (symmetric or min) or ``int8`` (symmetric).

    Raises WeightError for values that are not finite and ScaleRangeError when `scale_type` is f16
    and a scale would overflow or lose its precision.
    """
    n, k = x.shape
    groups = np.ascontiguousarray(x, dtype=np.float32).reshape(-1, group_size)
    low, high = groups.min(), groups.max()
    if not (low > -_LARGEST and high < _LARGEST):  # also false for NaN
        raise WeightError(f"holds weights that are not finite or beyond {_LARGEST:g}")
    if format == "int8":
        q, scales = _int8(groups, scale_type)
        offsets = None
    elif form == "symmetric":
        q, scales = _symmetric(groups, scale_type)
        offsets = None
    else:
        q, scales, offsets = _minimum(groups, scale_type)
        offsets = offsets.reshape(n, -1)
    return Quantized(q.reshape(n, k), scales.reshape(n, -1), offsets)


def restore_rows(rows: Quantized, format: str, scale_type: str) -> F32:
    """The float32 weights [N, K] that quantized rows stand for."""
    n, k = rows.q.shape
    scales = half_to_f32(rows.scales, scale_type)[..., None]
    q = rows.q.reshape(n, rows.scales.shape[1], -1).astype(np.float32)
    if rows.offsets is not None:
        q *= scales
        q += half_to_f32(rows.offsets, scale_type)[..., None]
    else:
        q -= np.float32(8 if format == "int4" else 128)
        q *= scales
    return q.reshape(n, k)


def _int8(x: F32, scale_type: str) -> tuple[U8, U16]:
    largest = np.abs(x).max(axis=1)
    bits = stored_scales(largest / np.float32(127), scale_type)
    q = x * _inverse(half_to_f32(bits, scale_type))[:, None]
    np.rint(q, out=q)
    np.clip(q, -127, 127, out=q)
    q += np.float32(128)
    return q.astype(np.uint8), bits


def _symmetric(x: F32, scale_type: str) -> tuple[U8, U16]:
    low, high = x.min(axis=1), x.max(axis=1)
    signed = np.where(-low > high, low, high)
    best = np.full(signed.shape, -1.0, dtype=np.float32)
    scale = np.zeros_like(signed)
    q = np.empty_like(x)
    for divisor in _SYMMETRIC_DIVISORS:
        np.multiply(x, _inverse(signed / np.float32(divisor))[:, None], out=q)
        np.rint(q, out=q)
        np.clip(q, -8, 7, out=q)
        # For fixed q the best scale is <x,q>/<q,q>, and it lowers the error by <x,q>^2/<q,q>.
        cross = np.einsum("ij,ij->i", x, q)
        square = np.maximum(np.einsum("ij,ij->i", q, q), np.float32(1))
        fitted = cross / square
        gain = fitted * cross
        better = gain > best
        np.copyto(best, gain, where=better)
        np.copyto(scale, fitted, where=better)
    bits = stored_scales(scale, scale_type)
    np.multiply(x, _inverse(half_to_f32(bits, scale_type))[:, None], out=q)
    np.rint(q, out=q)
    np.clip(q, -8, 7, out=q)
    q += np.float32(8)
    return q.astype(np.uint8), bits


def _minimum(x: F32, scale_type: str) -> tuple[U8, U16, U16]:
    low, high = x.min(axis=1), x.max(axis=1)
    size = np.float32(x.shape[1])
    mean = x.mean(axis=1)
    centred = x - mean[:, None]
    best = np.zeros_like(low)
    scale, minimum = np.zeros_like(low), mean.copy()
    q = np.empty_like(x)
    for shrink in _MINIMUM_SHRINKS:
        step = (high - low) * np.float32(shrink / 15)
        start = low + (high - low) * np.float32((1 - shrink) / 2)
        _round_affine(x, step, start, q)
        # Linear regression of x on q; the variance it explains is what a candidate gains.
        mean_q = q.mean(axis=1)
        spread = np.einsum("ij,ij->i", q, q) - size * mean_q * mean_q
        cross = np.einsum("ij,ij->i", centred, q)
        slope = np.divide(cross, spread, out=np.zeros_like(cross), where=spread > 0)
        gain = slope * cross
        better = gain > best
        np.copyto(best, gain, where=better)
        np.copyto(scale, slope, where=better)
        np.copyto(minimum, mean - slope * mean_q, where=better)
    bits = stored_scales(scale, scale_type)
    offset_bits = f32_to_half(minimum, scale_type)
    _check_overflow(half_to_f32(offset_bits, scale_type), scale_type)
    step, start = half_to_f32(bits, scale_type), half_to_f32(offset_bits, scale_type)
    _round_affine(x, step, start, q)
    return q.astype(np.uint8), bits, offset_bits


def _round_affine(x: F32, step: F32, start: F32, out: F32) -> None:
    np.subtract(x, start[:, None], out=out)
    out *= _inverse(step)[:, None]
    np.rint(out, out=out)
    np.clip(out, 0, 15, out=out)


def _inverse(scale: F32) -> F32:
    usable = np.abs(scale) > _SMALLEST
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=usable)


def stored_scales(scale: F32, scale_type: str) -> U16:
    """Round scales or minimums to the bits of their type; ScaleRangeError when f16 loses them."""
    scale = np.where(np.abs(scale) > _SMALLEST, scale, np.float32(0))
    bits = f32_to_half(scale, scale_type)
    _check_overflow(half_to_f32(bits, scale_type), scale_type)
    if scale_type == "f16" and ((scale != 0) & (np.abs(scale) < _F16_SMALLEST)).any():
        raise ScaleRangeError("a scale is too small for f16")
    return bits


def _check_overflow(values: F32, scale_type: str) -> None:
    if not np.isfinite(values).all():
        if scale_type == "f16":
            raise ScaleRangeError("a scale or minimum is too large for f16")
        raise WeightError("weights are too large for a 16-bit scale")
