"""The packed layout against loops written from its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_infer.checkpoint.format import LinearTensor, dequantize
from edge_infer.checkpoint.packing import (
    bf16_to_f32,
    f32_to_bf16,
    f32_to_half,
    half_to_f32,
    pack_groups,
    pack_int4,
    pack_int8,
    unpack_groups,
    unpack_int4,
    unpack_int8,
)


def naive_int4(q: np.ndarray) -> np.ndarray:
    n, k = q.shape
    lines = np.zeros((-(-n // 16), k // 8, 64), dtype=np.uint8)
    for row in range(n):
        for column in range(k):
            block, r, step, inner = row // 16, row % 16, column // 8, column % 8
            byte, shift = (4 * r + inner, 0) if inner < 4 else (4 * r + inner - 4, 4)
            lines[block, step, byte] |= int(q[row, column]) << shift
    return lines


def naive_int8(q: np.ndarray) -> np.ndarray:
    n, k = q.shape
    lines = np.zeros((-(-n // 16), k // 4, 64), dtype=np.uint8)
    for row in range(n):
        for column in range(k):
            lines[row // 16, column // 4, 4 * (row % 16) + column % 4] = q[row, column]
    return lines


shapes = st.tuples(st.integers(1, 40), st.integers(1, 8).map(lambda steps: 8 * steps))


@given(shapes, st.integers(0, 2**32 - 1))
def test_int4_layout_is_the_definition(shape: tuple[int, int], seed: int) -> None:
    q = np.random.default_rng(seed).integers(0, 16, shape, dtype=np.uint8)
    packed = pack_int4(q)
    np.testing.assert_array_equal(packed, naive_int4(q))
    np.testing.assert_array_equal(unpack_int4(packed, shape[0]), q)


@given(shapes, st.integers(0, 2**32 - 1))
def test_int8_layout_is_the_definition(shape: tuple[int, int], seed: int) -> None:
    q = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    packed = pack_int8(q)
    np.testing.assert_array_equal(packed, naive_int8(q))
    np.testing.assert_array_equal(unpack_int8(packed, shape[0]), q)


def test_groups_put_rows_last_and_pad_with_zero() -> None:
    scales = np.arange(1, 18 * 3 + 1, dtype=np.uint16).reshape(18, 3)
    packed = pack_groups(scales)
    assert packed.shape == (2, 3, 16)
    for row in range(18):
        for group in range(3):
            assert packed[row // 16, group, row % 16] == scales[row, group]
    assert not packed[1, :, 2:].any()
    np.testing.assert_array_equal(unpack_groups(packed, 18), scales)


def test_bf16_conversion_equals_torch() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    special = np.array([0, 0x80000000, 0x7F800000, 0x7F7FFFFF, 0x3F808000, 0x3F818000], np.uint32)
    x = np.concatenate([bits, special]).view(np.float32)
    finite = x[~np.isnan(x)]
    expected = torch.from_numpy(finite).to(torch.bfloat16)
    ours = f32_to_bf16(finite)
    np.testing.assert_array_equal(ours, expected.view(torch.uint16).numpy())
    np.testing.assert_array_equal(bf16_to_f32(ours), expected.float().numpy())
    assert np.isnan(bf16_to_f32(f32_to_bf16(x[np.isnan(x)]))).all()


def test_f16_scales_round_to_nearest_even_and_overflow_to_infinity() -> None:
    x = np.array([1 + 2**-11, 1 + 3 * 2**-11, 70000.0, -(2.0**-24)], dtype=np.float32)
    expected = np.array([1.0, 1 + 2**-9, np.inf, -(2.0**-24)], dtype=np.float32)
    np.testing.assert_array_equal(half_to_f32(f32_to_half(x, "f16"), "f16"), expected)


@pytest.mark.parametrize("scale_type", ["f16", "bf16"])
@pytest.mark.parametrize(
    ("format_", "form"),
    [("int4", "symmetric"), ("int4", "zero"), ("int4", "min"), ("int8", "symmetric")],
)
def test_dequantize_follows_each_form(format_: str, form: str, scale_type: str) -> None:
    rng = np.random.default_rng(1)
    n, k, group = 19, 96, 32
    q = rng.integers(0, 16 if format_ == "int4" else 256, (n, k), dtype=np.uint8)
    scales = f32_to_half(rng.standard_normal((n, k // group)).astype(np.float32), scale_type)
    mins = f32_to_half(rng.standard_normal((n, k // group)).astype(np.float32), scale_type)
    zeros = rng.integers(0, 256, (n, k // group), dtype=np.uint8)
    offsets = {"symmetric": None, "zero": zeros, "min": mins}[form]
    tensor = LinearTensor(
        name="x",
        format=format_,
        form=form,
        scale_type=scale_type,
        group_size=group,
        n=n,
        k=k,
        data=(pack_int4 if format_ == "int4" else pack_int8)(q),
        scales=pack_groups(scales),
        offsets=None if offsets is None else pack_groups(offsets),
    )
    middle = 8 if format_ == "int4" else 128
    expected = np.empty((n, k), dtype=np.float32)
    scale, minimum = half_to_f32(scales, scale_type), half_to_f32(mins, scale_type)
    for row in range(n):
        for column in range(k):
            g = column // group
            value = np.float32(q[row, column])
            if form == "min":
                expected[row, column] = scale[row, g] * value + minimum[row, g]
            else:
                zero = np.float32(zeros[row, g] if form == "zero" else middle)
                expected[row, column] = scale[row, g] * (value - zero)
    np.testing.assert_array_equal(dequantize(tensor), expected)
    stored = tensor.data.nbytes + 2 * 16 * 6 + (0 if offsets is None else tensor.offsets.nbytes)
    assert tensor.nbytes == stored
    assert tensor.bits_per_weight == stored * 8 / (n * k)
