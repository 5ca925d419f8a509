"""A recorded program: plain records, their memory plan, and how they become native ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_infer import _native
from edge_infer.checkpoint.format import LinearTensor
from edge_infer.program.arena import Interval, plan_offsets
from edge_infer.program.kv_layers import KvLayer


class Rope(Protocol):
    """A rotary embedding whose tables are made for the positions that are served."""

    def tables(self, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin, float32 [positions, rotary_dim / 2]."""

    def nbytes(self, positions: int) -> int:
        """Bytes of both tables."""


@dataclass(eq=False)
class Tensor:
    """float32 [rows, columns]; `width` is the row stride in floats, a multiple of 16."""

    width: int
    columns: int
    rows: str = "tokens"


@dataclass(eq=False)
class Embed:
    """Embedding rows of the step's tokens."""

    weight: int
    out: Tensor
    scale: float


@dataclass(eq=False)
class Prepare:
    """An input made ready for linears: normed, then quantized or rounded per form."""

    source: Tensor
    rows: str
    k: int
    norm: int
    eps: float
    forms: list[tuple[str, int]] = field(default_factory=list)  # (activation type, group)

    def form(self, kind: str, group: int) -> int:
        """The index of a prepared form, added when it is new."""
        key = (kind, group if kind != "f32" else 0)
        if key not in self.forms:
            self.forms.append(key)
        return self.forms.index(key)


@dataclass(frozen=True)
class Part:
    """One weight of a linear op."""

    weight: int
    bias: int
    column: int
    form: int


@dataclass(eq=False)
class Linear:
    """One or more linears of one prepared input."""

    prepare: Prepare
    parts: Sequence[Part]
    out: Tensor
    epilogue: str
    function: str


@dataclass(eq=False)
class RopeKv:
    """Norms and RoPE of q and k, and the write of k and v to the cache."""

    qkv: Tensor
    layer: int
    num_heads: int
    q_column: int
    k_column: int
    v_column: int
    q_norm: int
    k_norm: int
    eps: float
    rope: int


@dataclass(eq=False)
class Attention:
    """Paged attention of one layer."""

    qkv: Tensor
    out: Tensor
    layer: int
    num_heads: int
    q_column: int
    window: int
    scale: float
    gate_column: int


Record = Embed | Prepare | Linear | RopeKv | Attention


@dataclass(frozen=True)
class StepLimits:
    """What one step may hold."""

    max_tokens: int
    max_sequences: int
    max_logits: int
    max_positions: int


@dataclass
class _Layout:
    """Offsets of every buffer and prepared form."""

    tensors: dict[int, Interval]
    forms: dict[tuple[int, int], tuple[Interval, Interval]]  # (prepare, form): shared, private
    arena_bytes: int
    private_bytes: int


@dataclass
class ProgramSpec:
    """Everything a native program is built from."""

    records: list[Record]
    linears: list[LinearTensor]
    vectors: list[NDArray[np.float32]]
    ropes: list[Rope]
    kv_layers: list[KvLayer]
    logits: Tensor
    hidden: Prepare  # the output head's input; one of its forms is f32

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self.logits.columns

    @property
    def weight_bytes(self) -> int:
        """Bytes of all linears, mapped from the checkpoint."""
        return sum(tensor.nbytes for tensor in self.linears)

    def rope_bytes(self, positions: int) -> int:
        """Bytes of all RoPE tables for that many positions."""
        return sum(rope.nbytes(positions) for rope in self.ropes)

    def arena_bytes(self, limits: StepLimits) -> int:
        """Bytes of the activation arena for these limits, known before anything is loaded."""
        return self._layout(limits).arena_bytes

    def instantiate(
        self,
        pool: _native.ThreadPool,
        kv: _native.KvCache,
        isa: str,
        limits: StepLimits,
        *,
        batch_invariant: bool = False,
    ) -> _native.Program:
        """Build the native program over the checkpoint's mapped weights.

        With `batch_invariant` a token's logits do not depend on what else its step computes.
        """
        layout = self._layout(limits)
        program = _native.Program(
            pool,
            kv,
            isa,
            limits.max_tokens,
            limits.max_sequences,
            limits.max_logits,
            limits.max_positions,
            self.vocab_size,
            batch_invariant,
        )
        for tensor in self.linears:
            program.add_weight(
                getattr(_native.WeightFormat, tensor.format),
                getattr(_native.GroupForm, tensor.form),
                getattr(_native.ScaleType, tensor.scale_type),
                tensor.n,
                tensor.k,
                tensor.group_size,
                tensor.data,
                tensor.scales,
                tensor.offsets,
            )
        for vector in self.vectors:
            program.add_vector(vector)
        for rope in self.ropes:
            program.add_rope(*rope.tables(limits.max_positions))
        emitted: dict[int, int] = {}  # record -> native op
        for record in self.records:
            emitted[id(record)] = program.add_op(_native_op(record, layout, emitted))
        program.finish(
            layout.arena_bytes,
            layout.private_bytes,
            _buffer(self.logits, layout),
            emitted[id(self.hidden)],
            self.hidden.forms.index(("f32", 0)),
        )
        return program

    def _layout(self, limits: StepLimits) -> _Layout:
        rows = {"tokens": limits.max_tokens, "logits": limits.max_logits}
        tensors: dict[int, Interval] = {}
        forms: dict[tuple[int, int], tuple[Interval, Interval]] = {}

        def use(tensor: Tensor, op: int) -> None:
            if id(tensor) not in tensors:
                tensors[id(tensor)] = Interval(rows[tensor.rows] * tensor.width * 4, op, op)
            tensors[id(tensor)].last = op

        for op, record in enumerate(self.records):
            match record:
                case Embed():
                    use(record.out, op)
                case Prepare():
                    use(record.source, op)
                    for i, (kind, group) in enumerate(record.forms):
                        size = [
                            _native.Program.prepared_bytes(
                                getattr(_native.ActivationType, kind), record.k, group, n
                            )
                            for n in (rows[record.rows], 1)
                        ]
                        forms[id(record), i] = (
                            Interval(size[0], op, op),
                            Interval(size[1], op, op),
                        )
                case Linear():
                    # The input stays until here: a one-row step has no barrier between a
                    # prepare and its linears, and a plain f32 input is read in place.
                    use(record.prepare.source, op)
                    for part in record.parts:
                        for interval in forms[id(record.prepare), part.form]:
                            interval.last = op
                    use(record.out, op)
                case RopeKv():
                    use(record.qkv, op)
                case Attention():
                    use(record.qkv, op)
                    use(record.out, op)
        tensors[id(self.logits)].last = len(self.records)  # read by the caller
        shared = [*tensors.values(), *(f[0] for f in forms.values())]
        arena_bytes = plan_offsets(shared)
        private_bytes = plan_offsets([f[1] for f in forms.values()])
        return _Layout(tensors, forms, arena_bytes, private_bytes)


def _buffer(tensor: Tensor, layout: _Layout) -> _native.Buffer:
    return _native.Buffer(layout.tensors[id(tensor)].offset, tensor.width)


NativeOp = (
    _native.EmbedOp | _native.PrepareOp | _native.LinearOp | _native.RopeKvOp | _native.AttentionOp
)


def _native_op(record: Record, layout: _Layout, emitted: dict[int, int]) -> NativeOp:
    match record:
        case Embed():
            return _native.EmbedOp(record.weight, _buffer(record.out, layout), record.scale)
        case Prepare():
            outputs = []
            for i, (kind, group) in enumerate(record.forms):
                shared, private = layout.forms[id(record), i]
                kind_id = getattr(_native.ActivationType, kind)
                outputs.append(_native.Prepared(kind_id, group, shared.offset, private.offset))
            return _native.PrepareOp(
                _buffer(record.source, layout),
                getattr(_native.Rows, record.rows),
                record.k,
                record.norm,
                record.eps,
                outputs,
            )
        case Linear():
            parts = [_native.LinearPart(p.weight, p.bias, p.column, p.form) for p in record.parts]
            return _native.LinearOp(
                emitted[id(record.prepare)],
                parts,
                _buffer(record.out, layout),
                getattr(_native.Rows, record.out.rows),
                getattr(_native.Epilogue, record.epilogue),
                getattr(_native.GateFunction, record.function),
            )
        case RopeKv():
            return _native.RopeKvOp(
                _buffer(record.qkv, layout),
                record.layer,
                record.num_heads,
                record.q_column,
                record.k_column,
                record.v_column,
                record.q_norm,
                record.k_norm,
                record.eps,
                record.rope,
            )
        case Attention():
            return _native.AttentionOp(
                _buffer(record.qkv, layout),
                _buffer(record.out, layout),
                record.layer,
                record.num_heads,
                record.q_column,
                record.window,
                record.scale,
                record.gate_column,
            )
