"""
The native core of edge-infer: ISA detection, kernels and the step program.
"""

from collections.abc import Sequence
import enum
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


def cpu_features() -> dict:
    """What the CPU has and the operating system grants, by feature."""

def available_isas() -> list[str]:
    """The kernel paths this machine can run, lowest first."""

def selected_isa() -> str:
    """
    The kernel path in force: EDGE_INFER_ISA, or the best available.

    Raises ValueError when the variable asks for what this machine lacks.
    """

def self_test(isa: str) -> dict[str, str]:
    """
    Run a small case of every kernel of a path against the scalar one.

    Returns the kernel names by op; raises RuntimeError naming the kernel that differs.
    """

class WeightFormat(enum.Enum):
    int4 = 0

    int8 = 1

    bf16 = 2

    f16 = 3

    f32 = 4

class GroupForm(enum.Enum):
    symmetric = 0

    zero = 1

    min = 2

class ScaleType(enum.Enum):
    f16 = 0

    bf16 = 1

class ActivationType(enum.Enum):
    int8 = 0

    bf16 = 1

    f32 = 2

class KvType(enum.Enum):
    f32 = 0

    f16 = 1

    bf16 = 2

    int8 = 3

class Rows(enum.Enum):
    tokens = 0

    logits = 1

class Epilogue(enum.Enum):
    store = 0

    add = 1

    gate = 2

class GateFunction(enum.Enum):
    silu = 0

    gelu = 1

    gelu_tanh = 2

class Buffer:
    def __init__(self, offset: int, width: int) -> None: ...

class Prepared:
    def __init__(self, type: ActivationType, group: int, offset: int, private_offset: int) -> None: ...

class LinearPart:
    def __init__(self, weight: int, bias: int, column: int, input: int) -> None: ...

class EmbedOp:
    def __init__(self, weight: int, out: Buffer, scale: float) -> None: ...

class PrepareOp:
    def __init__(self, in_: Buffer, rows: Rows, k: int, norm: int, eps: float, outputs: Sequence[Prepared]) -> None: ...

class LinearOp:
    def __init__(self, prepare: int, parts: Sequence[LinearPart], out: Buffer, rows: Rows, epilogue: Epilogue, gate: GateFunction) -> None: ...

class RopeKvOp:
    def __init__(self, qkv: Buffer, layer: int, num_heads: int, q_column: int, k_column: int, v_column: int, q_norm: int, k_norm: int, eps: float, rope: int) -> None: ...

class AttentionOp:
    def __init__(self, qkv: Buffer, out: Buffer, layer: int, num_heads: int, q_column: int, window: int, scale: float, gate_column: int) -> None: ...

class ThreadPool:
    def __init__(self, threads: int, cpus: Sequence[int]) -> None:
        """
        Start `threads` threads (the caller of a step counts as one), pinned to `cpus`.
        """

    @property
    def threads(self) -> int: ...

    @property
    def cpus(self) -> list[int]: ...

class KvGroup:
    def __init__(self, window: int, num_blocks: int, layers: Sequence[int]) -> None:
        """
        Layers that share block tables; a token sees `window` positions, 0 all.
        """

class KvCache:
    def __init__(self, layers: Sequence[tuple[int, int]], groups: Sequence[KvGroup], block_size: int, type: KvType) -> None:
        """Map a paged cache; layers are (num_key_value_heads, head_dim)."""

    @staticmethod
    def block_bytes(layers: Sequence[tuple[int, int]], block_size: int, type: KvType) -> int:
        """Bytes of one block over these layers."""

    @property
    def block_size(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def address(self) -> int: ...

class Program:
    def __init__(self, pool: ThreadPool, kv: KvCache, isa: str, max_tokens: int, max_sequences: int, max_logits: int, max_positions: int, vocab_size: int, batch_invariant: bool = False) -> None:
        """
        batch_invariant: a token's logits have the same bits whatever else a step computes.
        """

    def add_weight(self, format: WeightFormat, form: GroupForm, scale_type: ScaleType, n: int, k: int, group: int, data: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], scales: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None, offsets: Annotated[NDArray, dict(order='C', device='cpu', writable=False)] | None) -> int:
        """Register a linear's arrays (kept alive, not copied); returns its id."""

    def add_vector(self, values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', writable=False)]) -> int:
        """Copy a norm weight or bias; returns its id."""

    def add_rope(self, cos: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)], sin: Annotated[NDArray[numpy.float32], dict(order='C', device='cpu', writable=False)]) -> int:
        """
        Register cos and sin [positions, rotary_dim / 2]; returns the table's id.
        """

    @overload
    def add_op(self, arg: EmbedOp, /) -> int: ...

    @overload
    def add_op(self, arg: PrepareOp, /) -> int: ...

    @overload
    def add_op(self, arg: LinearOp, /) -> int: ...

    @overload
    def add_op(self, arg: RopeKvOp, /) -> int: ...

    @overload
    def add_op(self, arg: AttentionOp, /) -> int: ...

    def finish(self, arena_bytes: int, private_bytes: int, logits: Buffer, hidden_op: int, hidden_output: int) -> None: ...

    @staticmethod
    def prepared_bytes(type: ActivationType, k: int, group: int, tokens: int) -> int:
        """Bytes that a prepared form needs for `tokens` rows."""

    def step(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], query_start: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], logits_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), writable=False)]: ...

    def hidden_step(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], query_start: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None), writable=False)]:
        """A step without the output head: the head's input, [rows, hidden_size]."""

    @property
    def memory_bytes(self) -> int: ...

    def kernel_calls(self) -> list[tuple[str, int]]:
        """How many ops each kernel has run, as (name, count)."""
