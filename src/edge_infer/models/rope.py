"""Rotary position embeddings: from a checkpoint's parameters to cos and sin tables.

Tables are sized to the positions that will be served, never to the checkpoint's
advertised maximum. Frequencies and angles are computed in float32, as the models
were trained and as transformers computes them.

Sources: RoFormer (arXiv 2104.09864); YaRN (arXiv 2309.00071), which also describes
linear and dynamic NTK scaling; the Llama 3.1 model card for the llama3 type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_infer.models.config import ConfigError

Array = NDArray[np.float32]

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True)
class RopeSpec:
    """One kind of layer's rotary embedding.

    `parameters` is one `rope_parameters` entry of a config (rope_type, rope_theta,
    factor, ...). Raises ConfigError on an unknown type or a bad value.
    """

    parameters: Mapping[str, Any]
    head_dim: int
    max_position_embeddings: int

    def __post_init__(self) -> None:
        try:
            with np.errstate(all="ignore"):
                sane = all(np.isfinite(table).all() for table in self.tables(2))
        except (OverflowError, ZeroDivisionError):
            sane = False
        if not sane:
            raise ConfigError(f"rope_parameters {dict(self.parameters)} give no finite angles")

    @property
    def rotary_dim(self) -> int:
        """How many of a head's values are rotated."""
        partial = _Parameters(self.parameters).number("partial_rotary_factor", 1.0)
        dim = int(self.head_dim * partial)
        if dim < 2 or dim > self.head_dim or dim % 2:
            raise ConfigError(
                f"rope_parameters.partial_rotary_factor {partial} gives {dim} rotated values of "
                f"head_dim {self.head_dim}; it must be even and within the head"
            )
        return dim

    def nbytes(self, positions: int) -> int:
        """Bytes of both tables."""
        return positions * self.rotary_dim * 4

    def tables(self, positions: int) -> tuple[Array, Array]:
        """cos and sin, float32 [positions, rotary_dim / 2], attention scaling folded in.

        The dynamic type fixes its base for `positions`: a paged cache holds keys that are
        already rotated, so the base cannot follow each sequence's length.
        """
        inv_freq, scaling = self._frequencies(positions)
        angles = np.arange(positions, dtype=np.float32)[:, None] * inv_freq
        scale = np.float32(scaling)
        return np.cos(angles) * scale, np.sin(angles) * scale

    def _frequencies(self, positions: int) -> tuple[Array, float]:
        p = _Parameters(self.parameters)
        rope_type = self.parameters.get("rope_type") or self.parameters.get("type") or "default"
        theta = p.number("rope_theta", 10000.0)
        dim = self.rotary_dim
        base = _frequencies(theta, dim)
        match rope_type:
            case "default":
                return base, 1.0
            case "linear":
                return (base / p.number("factor")).astype(np.float32), 1.0
            case "dynamic":
                factor = p.number("factor")
                growth = max(positions, self.max_position_embeddings) / self.max_position_embeddings
                scaled = theta * (factor * growth - (factor - 1.0)) ** (dim / max(dim - 2, 1))
                return _frequencies(scaled, dim), 1.0
            case "llama3":
                return _llama3(base, p), 1.0
            case "yarn":
                return _yarn(theta, dim, p, self.max_position_embeddings)
        raise ConfigError(
            f"rope_parameters.rope_type {rope_type!r} is not supported; "
            f"the supported types are {', '.join(ROPE_TYPES)}"
        )


class _Parameters:
    """Typed reads of `rope_parameters`, with errors that name the field."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def number(self, name: str, default: float | None = None) -> float:
        value = self._values.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"rope_parameters.{name} must be a number, not {value!r}")
        if not math.isfinite(value) or value <= 0:
            raise ConfigError(f"rope_parameters.{name} must be positive and finite, not {value!r}")
        return float(value)

    def get(self, name: str) -> Any:
        return self._values.get(name)


def _frequencies(theta: float, dim: int) -> Array:
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


def _llama3(inv_freq: Array, p: _Parameters) -> Array:
    """Low frequencies divided by `factor`, high ones kept, a linear blend between."""
    factor = p.number("factor")
    low = p.number("low_freq_factor")
    high = p.number("high_freq_factor")
    original = p.number("original_max_position_embeddings")
    if high <= low:
        raise ConfigError(
            f"rope_parameters.high_freq_factor {high} must exceed low_freq_factor {low}"
        )
    turns = original * inv_freq / (2 * math.pi)  # over the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: Array = ((1.0 - blend) * inv_freq / factor + blend * inv_freq).astype(np.float32)
    return blended


def _yarn(
    theta: float, dim: int, p: _Parameters, max_position_embeddings: int
) -> tuple[Array, float]:
    """YaRN's blend of interpolated and original frequencies, and its attention scaling."""
    original = p.number("original_max_position_embeddings", float(max_position_embeddings))
    factor = p.number("factor", max_position_embeddings / original)
    beta_fast = p.number("beta_fast", 32.0)
    beta_slow = p.number("beta_slow", 1.0)

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension_of(beta_fast), dimension_of(beta_slow)
    if p.get("truncate") in (None, True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = last - first if last != first else 0.001
    interpolated = np.clip((np.arange(dim // 2, dtype=np.float32) - first) / width, 0.0, 1.0)
    base = _frequencies(theta, dim)
    inv_freq = base / factor * interpolated + base * (1.0 - interpolated)

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if p.get("attention_factor") is not None:
        scaling = p.number("attention_factor")
    elif p.get("mscale") and p.get("mscale_all_dim"):
        scaling = mscale(p.number("mscale")) / mscale(p.number("mscale_all_dim"))
    else:
        scaling = mscale(1.0)
    return inv_freq.astype(np.float32), scaling
