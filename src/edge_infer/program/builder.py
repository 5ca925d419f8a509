"""What a model file calls: records ops by name, plans memory, then builds the program.

Recording reads only headers and small vectors, so that a plan exists before any
weight is touched; `ProgramSpec.instantiate` turns it into a native program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_infer import _native
from edge_infer.checkpoint.format import LinearTensor
from edge_infer.program.kv_layers import KvLayer
from edge_infer.program.spec import (
    Attention,
    Embed,
    Linear,
    Part,
    Prepare,
    ProgramSpec,
    Record,
    Rope,
    RopeKv,
    Tensor,
)

ActivationName = Literal["int8", "bf16"]


class Weights(Protocol):
    """What the builder needs of a checkpoint."""

    def linear(self, name: str) -> LinearTensor:
        """A linear's weight, by module name."""

    def array(self, name: str) -> NDArray[np.float32]:
        """A small tensor as float32, by full name."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""


@dataclass(eq=False)
class Normed:
    """RMSNorm of a tensor, computed where a linear first reads it."""

    source: Tensor
    weight: int
    eps: float


@dataclass(frozen=True)
class HeadLayout:
    """Columns of q, k and v (and the per-head gate) in a fused projection's output."""

    q: int
    k: int
    v: int
    gate: int = -1


def pad16(n: int) -> int:
    """The next multiple of 16, the row block of the packed layouts."""
    return (n + 15) // 16 * 16


@dataclass
class ProgramBuilder:
    """Records a model. `activations` is how 4- and 8-bit weights see their input."""

    weights: Weights
    activations: ActivationName = "int8"
    _records: list[Record] = field(default_factory=list)
    _linears: list[LinearTensor] = field(default_factory=list)
    _linear_ids: dict[str, int] = field(default_factory=dict)
    _vectors: list[NDArray[np.float32]] = field(default_factory=list)
    _vector_ids: dict[str, int] = field(default_factory=dict)
    _ropes: list[Rope] = field(default_factory=list)
    _kv_layers: list[KvLayer] = field(default_factory=list)
    _prepared: dict[tuple[int, str], Prepare] = field(default_factory=dict)
    _inputs: list[Tensor | Normed] = field(default_factory=list)  # keeps ids in _prepared alive
    _logits: Tensor | None = None
    _hidden: Prepare | None = None

    def embed(self, name: str, scale: float = 1.0) -> Tensor:
        """The embeddings of the step's tokens, [tokens, hidden_size]."""
        weight = self._weight(name)
        out = Tensor(pad16(self._linears[weight].k), self._linears[weight].k)
        self._records.append(Embed(weight, out, scale))
        return out

    def rms_norm(self, x: Tensor, name: str, eps: float) -> Normed:
        """RMSNorm of x with the vector `name`."""
        return Normed(x, self._vector(name, x.columns), eps)

    def linear(self, x: Tensor | Normed, names: Sequence[str]) -> Tensor:
        """The linears of one input, side by side: each begins at a multiple of 16 columns.

        A bias is added where the checkpoint has one.
        """
        widths = [pad16(self._linears[self._weight(n)].n) for n in names]
        out = Tensor(sum(widths), sum(widths))
        columns = np.cumsum([0, *widths])[:-1].tolist()
        self._linear(x, names, columns, out, "store")
        return out

    def add_linear(self, target: Tensor, x: Tensor | Normed, name: str) -> None:
        """target += W x: a projection with the residual in its epilogue."""
        self._linear(x, [name], [0], target, "add")

    def gated(self, x: Tensor | Normed, gate: str, up: str, function: str) -> Tensor:
        """function(gate x) * (up x); function is silu, gelu or gelu_tanh."""
        n = self._linears[self._weight(gate)].n
        out = Tensor(pad16(n), n)
        self._linear(x, [gate, up], [0, 0], out, "gate", function)
        return out

    def rope(self, rope: Rope) -> int:
        """Register a rotary embedding; the id goes to `attention`."""
        self._ropes.append(rope)
        return len(self._ropes) - 1

    def attention(
        self,
        qkv: Tensor,
        layout: HeadLayout,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rope: int,
        window: int = 0,
        q_norm: str | None = None,
        k_norm: str | None = None,
        eps: float = 1e-6,
        scale: float | None = None,
    ) -> Tensor:
        """Causal attention over the next layer of the KV cache, [tokens, heads * head_dim].

        q_norm and k_norm are per-head RMSNorm vectors; `window` 0 means full attention;
        a gate column in `layout` multiplies head h by sigmoid(gate + h).
        """
        layer = len(self._kv_layers)
        self._kv_layers.append(KvLayer(num_kv_heads, head_dim, window))
        norms = [-1 if n is None else self._vector(n, head_dim) for n in (q_norm, k_norm)]
        self._records.append(
            RopeKv(
                qkv, layer, num_heads, layout.q, layout.k, layout.v, norms[0], norms[1], eps, rope
            )
        )
        out = Tensor(pad16(num_heads * head_dim), num_heads * head_dim)
        scale = head_dim**-0.5 if scale is None else scale
        self._records.append(
            Attention(qkv, out, layer, num_heads, layout.q, window, scale, layout.gate)
        )
        return out

    def logits(self, x: Tensor | Normed, name: str) -> None:
        """The output head, computed only for the rows whose logits are asked for."""
        n = self._linears[self._weight(name)].n
        out = Tensor(pad16(n), n, rows="logits")
        self._linear(x, [name], [0], out, "store")
        self._logits = out
        # As floats too, for embeddings: a step that wants them ends here.
        self._hidden = self._prepare(x, out.rows)
        self._hidden.form("f32", 0)

    def finish(self) -> ProgramSpec:
        """The recorded program. Raises ValueError when it has no logits."""
        if self._logits is None or self._hidden is None:
            raise ValueError("a model must end with logits()")
        return ProgramSpec(
            records=self._records,
            linears=self._linears,
            vectors=self._vectors,
            ropes=self._ropes,
            kv_layers=self._kv_layers,
            logits=self._logits,
            hidden=self._hidden,
        )

    def _weight(self, name: str) -> int:
        if name not in self._linear_ids:
            self._linear_ids[name] = len(self._linears)
            self._linears.append(self.weights.linear(name))
        return self._linear_ids[name]

    def _vector(self, name: str, length: int) -> int:
        if name not in self._vector_ids:
            values = np.ascontiguousarray(self.weights.array(name), dtype=np.float32).reshape(-1)
            if values.size != length:
                raise ValueError(f"{name} has {values.size} values, the model needs {length}")
            self._vector_ids[name] = len(self._vectors)
            self._vectors.append(values)
        return self._vector_ids[name]

    def _linear(
        self,
        x: Tensor | Normed,
        names: Sequence[str],
        columns: Sequence[int],
        out: Tensor,
        epilogue: str,
        function: str = "silu",
    ) -> None:
        prepare = self._prepare(x, out.rows)
        parts = []
        for name, column in zip(names, columns, strict=True):
            weight = self._weight(name)
            tensor = self._linears[weight]
            if tensor.k != prepare.k:
                raise ValueError(f"{name} takes {tensor.k} columns, its input has {prepare.k}")
            bias = -1
            if self.weights.has(f"{name}.bias"):
                bias = self._vector(f"{name}.bias", tensor.n)
            kind = self.activations if tensor.group_size else "f32"
            parts.append(Part(weight, bias, column, prepare.form(kind, tensor.group_size)))
        self._records.append(Linear(prepare, parts, out, epilogue, function))

    def _prepare(self, x: Tensor | Normed, rows: str) -> Prepare:
        key = (id(x), rows)
        if key not in self._prepared:
            source = x.source if isinstance(x, Normed) else x
            norm, eps = (x.weight, x.eps) if isinstance(x, Normed) else (-1, 0.0)
            self._prepared[key] = Prepare(source, rows, source.columns, norm, eps)
            self._records.append(self._prepared[key])
            self._inputs.append(x)
        return self._prepared[key]


def kv_type(name: str) -> _native.KvType:
    """The native type of a KV cache dtype: f32, f16, bf16 or int8."""
    try:
        return _native.KvType[name]
    except KeyError:
        known = ", ".join(_native.KvType.__members__)
        raise ValueError(f"kv_dtype {name!r} is unknown; it is one of {known}") from None
