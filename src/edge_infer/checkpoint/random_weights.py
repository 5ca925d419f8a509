"""Checkpoints with random weights in the exact shape of a model, for benchmarks and tests.

Speed and memory do not depend on the values. Weights have mean 0 and standard deviation 0.02,
norms are 1 and biases 0, so activations stay finite at any depth.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge_infer.checkpoint.architectures import ExpectedTensor, expected_tensors
from edge_infer.checkpoint.errors import CheckpointError
from edge_infer.checkpoint.files import write_json
from edge_infer.checkpoint.format import (
    FORMS,
    GROUP_SIZES,
    ModuleFormat,
    quantization_config,
)
from edge_infer.checkpoint.packing import U8, U16, f32_to_bf16, f32_to_half, padded_rows
from edge_infer.checkpoint.writer import WEIGHTS_FILE, SafetensorsWriter, new_folder

WEIGHT_STD = 0.02
PIECE_BYTES = 4 << 20

# Standard deviation of uniformly drawn integers 0..15 and 0..255.
_INT4_STD = math.sqrt((16**2 - 1) / 12)
_INT8_STD = math.sqrt((256**2 - 1) / 12)


def write_random_checkpoint(
    config: Mapping[str, Any],
    dst: str | Path,
    *,
    seed: int = 0,
    group_size: int = 128,
    head_format: str = "int8",
    form: str = "symmetric",
    linear_format: str = "int4",
    force: bool = False,
) -> Path:
    """Write a checkpoint of the model that the HF `config` describes and return its folder.

    `linear_format` is ``int4``, ``int8`` or ``bf16``; `head_format` the same for embedding and
    output head; `form` (symmetric, min, zero) and `group_size` are those of int4, the latter
    lowered where K needs it. int8 uses groups of 32. Without packed modules the result is a plain
    HF folder. Raises CheckpointError for a value out of range or an unknown architecture.
    """
    for name, value in (("linear_format", linear_format), ("head_format", head_format)):
        if value not in ("int4", "int8", "bf16"):
            raise CheckpointError(f"{name} is {value!r}, expected int4, int8 or bf16")
    if form not in FORMS["int4"] or group_size not in GROUP_SIZES:
        raise CheckpointError(f"form {form!r} or group_size {group_size} is not known")
    formats = {"linear": linear_format, "head": head_format, "dense": "bf16"}
    dst = Path(dst).absolute()
    modules: dict[str, ModuleFormat] = {}
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    expected = expected_tensors(config, dst)
    for item in expected.values():
        module = _module(item, formats[item.role], form, group_size)
        if module is None:
            tensors[item.name] = ("BF16", item.shape)
        else:
            name = item.name.removesuffix(".weight")
            modules[name] = module
            tensors.update(module.tensors(name))
    rng = np.random.default_rng(seed)
    with new_folder(dst, force=force) as folder:
        with SafetensorsWriter(folder / WEIGHTS_FILE, tensors) as writer:
            for item in expected.values():
                name = item.name.removesuffix(".weight")
                if name in modules:
                    _write_packed(writer, name, modules[name], rng)
                else:
                    _write_dense(writer, item, rng)
            writer.finish()
        full = dict(config)
        if modules:
            full["quantization_config"] = quantization_config(modules)
        write_json(folder / "config.json", full)
    return dst


def _module(item: ExpectedTensor, format_: str, form: str, group_size: int) -> ModuleFormat | None:
    if format_ == "bf16" or item.shape[-1] % GROUP_SIZES[0]:
        return None
    n, k = item.shape
    if format_ == "int8":
        return ModuleFormat("int8", "symmetric", "f16", 32, n, k)
    group = max(size for size in GROUP_SIZES if size <= group_size and not k % size)
    return ModuleFormat("int4", form, "f16", group, n, k)


def _write_packed(
    writer: SafetensorsWriter, name: str, module: ModuleFormat, rng: np.random.Generator
) -> None:
    step = WEIGHT_STD / (_INT4_STD if module.format == "int4" else _INT8_STD)
    for tensor in module.tensors(name):
        entry = writer.entries[tensor]
        suffix = tensor.rpartition(".")[2]
        # Padding rows are the last lanes of the last block; their scale and offset must be 0.
        lanes = np.ones((entry.shape[0], 1, 16), dtype=bool)
        lanes[-1, :, 16 - (padded_rows(module.n) - module.n) :] = module.n % 16 == 0
        part: U8 | U16
        for begin, rows in _slabs(entry.shape[0], entry.nbytes):
            shape = (rows, *entry.shape[1:])
            keep = lanes[begin : begin + rows]
            if suffix == "qweight":
                part = rng.integers(0, 256, size=shape, dtype=np.uint8)
            elif suffix == "zeros":
                part = rng.integers(6, 10, size=shape, dtype=np.uint8) * keep
            else:
                spread = rng.uniform(0.8, 1.2, size=shape).astype(np.float32)
                # A minimum of -7.5 steps keeps the mean of uniform 0..15 at 0.
                factor = -7.5 * step if suffix == "mins" else step
                if module.form == "symmetric":
                    # Random signs cancel the mean of -0.5 that 0..15 has around 8.
                    spread *= rng.choice(np.array([-1, 1], dtype=np.float32), size=shape)
                values = np.where(keep, spread * np.float32(factor), np.float32(0))
                part = f32_to_half(values, module.scale_type)
            writer.write(tensor, begin * (entry.nbytes // entry.shape[0]), part)


def _write_dense(writer: SafetensorsWriter, item: ExpectedTensor, rng: np.random.Generator) -> None:
    entry = writer.entries[item.name]
    if len(item.shape) == 1:
        value = np.float32(0.0 if item.name.endswith(".bias") else 1.0)
        writer.write(item.name, 0, f32_to_bf16(np.full(item.shape, value, dtype=np.float32)))
        return
    for begin, rows in _slabs(item.shape[0], entry.nbytes):
        values = rng.standard_normal((rows, item.shape[1]), dtype=np.float32)
        part = f32_to_bf16(values * np.float32(WEIGHT_STD))
        writer.write(item.name, begin * item.shape[1] * 2, part)


def _slabs(count: int, nbytes: int) -> list[tuple[int, int]]:
    """Cut `count` leading rows of a tensor of `nbytes` into (begin, rows) of about 4 MiB."""
    step = max(1, PIECE_BYTES * count // max(1, nbytes))
    return [(begin, min(step, count - begin)) for begin in range(0, count, step)]
