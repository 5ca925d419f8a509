"""The cpu_int4 format: what config.json says about a quantized module, and the tensors it implies.

A quantized linear ``X`` is ``X.qweight``, ``X.scales`` and, by form, ``X.zeros`` or ``X.mins``.
``config.json`` holds ``quantization_config`` = ``{"quant_method": "cpu_int4", "version": 1,
"modules": {X: {"format", "form", "scale_type", "group_size", "n", "k"}}}``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.packing import (
    F32,
    LINE_BYTES,
    U16,
    bf16_to_f32,
    half_to_f32,
    padded_rows,
    unpack_groups,
    unpack_int4,
    unpack_int8,
)

QUANT_METHOD = "cpu_int4"
FORMAT_VERSION = 1
GROUP_SIZES = (32, 64, 128)
QUANTIZED_FORMATS = ("int4", "int8")
DENSE_DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
SCALE_DTYPES = {"f16": "F16", "bf16": "BF16"}
FORMS = {"int4": ("symmetric", "zero", "min"), "int8": ("symmetric",)}
MAX_DIM = 1 << 32


@dataclass(frozen=True)
class ModuleFormat:
    """How one quantized linear is stored. `n` and `k` are the true rows and columns."""

    format: str
    form: str
    scale_type: str
    group_size: int
    n: int
    k: int

    def tensors(self, name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The safetensors entries of module `name`: full name -> (dtype, shape)."""
        blocks, groups = padded_rows(self.n) // 16, self.k // self.group_size
        line = (blocks, self.k // (8 if self.format == "int4" else 4), LINE_BYTES)
        scale = SCALE_DTYPES[self.scale_type]
        out: dict[str, tuple[str, tuple[int, ...]]] = {
            f"{name}.qweight": ("U8", line),
            f"{name}.scales": (scale, (blocks, groups, 16)),
        }
        if self.form == "zero":
            out[f"{name}.zeros"] = ("U8", (blocks, groups, 16))
        elif self.form == "min":
            out[f"{name}.mins"] = (scale, (blocks, groups, 16))
        return out

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, as in config.json."""
        return asdict(self)


@dataclass(frozen=True)
class LinearTensor:
    """One linear's weight as it lies in the file; arrays are views of the mapping.

    `data` is uint8 [N/16, K/8, 64] (int4), uint8 [N/16, K/4, 64] (int8) or dense [N, K] (bf16 as
    uint16). `scales` are uint16 bits [N/16, K/G, 16]; `offsets` uint8 zeros or uint16 mins of the
    same shape. Dense tensors have group_size 0 and neither.
    """

    name: str
    format: str
    form: str
    scale_type: str
    group_size: int
    n: int
    k: int
    data: np.ndarray
    scales: np.ndarray | None
    offsets: np.ndarray | None

    @property
    def nbytes(self) -> int:
        """Bytes of data, scales and offsets together."""
        parts = (self.data, self.scales, self.offsets)
        return sum(int(part.nbytes) for part in parts if part is not None)

    @property
    def bits_per_weight(self) -> float:
        """Stored bits over true weights (padding rows count as cost)."""
        return self.nbytes * 8 / max(1, self.n * self.k)


def dequantize(tensor: LinearTensor) -> F32:
    """The float32 weights [N, K] that `tensor` stands for, one rounding per operation."""
    if tensor.scales is None:
        if tensor.format == "bf16":
            return bf16_to_f32(tensor.data)
        return tensor.data.astype(np.float32)
    unpack, middle = (unpack_int4, 8) if tensor.format == "int4" else (unpack_int8, 128)
    q = unpack(tensor.data, tensor.n).reshape(tensor.n, -1, tensor.group_size)
    scales = _grouped(tensor.scales, tensor.n, tensor.scale_type)
    if tensor.offsets is None:
        weights = scales * (q.astype(np.float32) - np.float32(middle))
    elif tensor.form == "zero":
        zeros = unpack_groups(tensor.offsets, tensor.n).astype(np.float32)[..., None]
        weights = scales * (q.astype(np.float32) - zeros)
    else:
        mins = _grouped(tensor.offsets, tensor.n, tensor.scale_type)
        weights = scales * q.astype(np.float32) + mins
    return weights.reshape(tensor.n, tensor.k)


def _grouped(packed: U16, n: int, scale_type: str) -> F32:
    return half_to_f32(unpack_groups(packed, n), scale_type)[..., None]


def quantization_config(modules: Mapping[str, ModuleFormat]) -> dict[str, Any]:
    """The ``quantization_config`` object to put into config.json."""
    return {
        "quant_method": QUANT_METHOD,
        "version": FORMAT_VERSION,
        "modules": {name: module.to_dict() for name, module in modules.items()},
    }


def parse_quantization_config(raw: Any, path: Path) -> dict[str, ModuleFormat]:
    """Check a ``quantization_config`` and return its modules; `path` is named in errors."""
    field = "quantization_config"
    if not isinstance(raw, dict):
        raise fail(path, f"{field} is {type(raw).__name__}, expected an object")
    method = raw.get("quant_method")
    if method != QUANT_METHOD:
        raise fail(
            path,
            f"{field}.quant_method is {method!r}; only {QUANT_METHOD!r} can be opened. Importing "
            "other quantized formats is not supported yet: start from the unquantized checkpoint",
        )
    if raw.get("version") != FORMAT_VERSION:
        raise fail(path, f"{field}.version is {raw.get('version')!r}, expected {FORMAT_VERSION}")
    modules = raw.get("modules")
    if not isinstance(modules, dict):
        raise fail(path, f"{field}.modules is {type(modules).__name__}, expected an object")
    return {name: _parse_module(name, entry, path) for name, entry in modules.items()}


def _parse_module(name: str, entry: Any, path: Path) -> ModuleFormat:
    where = f"quantization_config.modules[{name!r}]"
    fields = ("format", "form", "scale_type", "group_size", "n", "k")
    if not isinstance(entry, dict) or set(entry) != set(fields):
        raise fail(path, f"{where} must be an object with exactly the fields {', '.join(fields)}")
    _one_of(path, f"{where}.format", entry["format"], QUANTIZED_FORMATS)
    _one_of(path, f"{where}.form", entry["form"], FORMS[entry["format"]])
    _one_of(path, f"{where}.scale_type", entry["scale_type"], tuple(SCALE_DTYPES))
    for key in ("group_size", "n", "k"):
        value = entry[key]
        if type(value) is not int or not 0 < value <= MAX_DIM:
            raise fail(path, f"{where}.{key} is {value!r}, expected an integer in 1..{MAX_DIM}")
    _one_of(path, f"{where}.group_size", entry["group_size"], GROUP_SIZES)
    if entry["k"] % entry["group_size"]:
        raise fail(
            path, f"{where}.k = {entry['k']} is not a multiple of group_size {entry['group_size']}"
        )
    return ModuleFormat(**entry)


def _one_of(path: Path, where: str, value: Any, allowed: tuple[Any, ...]) -> None:
    # An unhashable or foreign type compares unequal to every allowed value.
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        raise fail(path, f"{where} is {value!r}, expected one of {', '.join(map(str, allowed))}")
