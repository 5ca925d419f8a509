"""Converting one tensor in pieces of at most 2**19 weights, by a few threads.

A piece takes about 10 MiB while it is worked on, so with at most four threads the extra memory
stays below 64 MiB however large a tensor is, which a test asserts.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.format import ModuleFormat
from edge_infer.checkpoint.packing import F32, ROW_BLOCK, pack_groups, pack_int4, pack_int8
from edge_infer.checkpoint.plan import TensorPlan
from edge_infer.checkpoint.quantizers.rtn import (
    Quantized,
    ScaleRangeError,
    WeightError,
    quantize_rows,
    restore_rows,
)
from edge_infer.checkpoint.sources import EXACT_TYPES, BlockSource, DenseSource
from edge_infer.checkpoint.writer import SafetensorsWriter

PIECE_WEIGHTS = 1 << 19
MAX_THREADS = 4
# Columns are cut at multiples of every group and ggml block size.
_COLUMN_STEP = 256

#: (r0, r1, c0, c1): rows r0..r1 and columns c0..c1 of a matrix.
Piece = tuple[int, int, int, int]
#: Called with the number of source bytes done since the last call; negative when a tensor restarts.
Advance = Callable[[int], None]


@dataclass(frozen=True)
class TensorResult:
    """What became of one tensor. `error` is |w - w'| / |w| in the 2-norm, 0 when exact."""

    name: str
    source: str
    module: ModuleFormat | None
    error: float
    note: str


def pieces(n: int, k: int, limit: int = PIECE_WEIGHTS) -> Iterator[Piece]:
    """Cut [n, k] into (r0, r1, c0, c1): whole row blocks, and parts of rows only when one block
    of 16 full rows is too large."""
    rows = max(ROW_BLOCK, limit // max(1, k) // ROW_BLOCK * ROW_BLOCK)
    columns = k
    if rows * k > limit:
        columns = max(_COLUMN_STEP, limit // ROW_BLOCK // _COLUMN_STEP * _COLUMN_STEP)
    for r0 in range(0, n, rows):
        for c0 in range(0, k, max(1, columns)):
            yield r0, min(n, r0 + rows), c0, min(k, c0 + columns)


def convert_tensor(
    writer: SafetensorsWriter,
    plan: TensorPlan,
    origin: Path,
    advance: Advance,
    pool: ThreadPoolExecutor,
) -> TensorResult:
    """Write one planned tensor with the threads of `pool`; `origin` is named in errors.

    `advance` is called from this thread.
    """
    module, note = plan.module, plan.note
    if module is None:
        _copy(writer, plan, advance)
        return TensorResult(plan.name, plan.source.kind, None, 0.0, note)
    try:
        error = _quantize(writer, plan, module, advance, pool)
    except ScaleRangeError as reason:
        note = f"bf16 scales, as {reason}" + (f"; {note}" if note else "")
        module = replace(module, scale_type="bf16")
        for name, (dtype, _) in module.tensors(plan.name).items():
            writer.restart(name, dtype)
        error = _quantize(writer, plan, module, advance, pool)
    except WeightError as reason:
        raise fail(origin, str(reason), tensor=plan.source.name) from reason
    return TensorResult(plan.name, plan.source.kind, module, error, note)


def _copy(writer: SafetensorsWriter, plan: TensorPlan, advance: Advance) -> None:
    source = plan.source
    if not isinstance(source, DenseSource):
        raise TypeError(f"{plan.name}: only stored floats can be kept, not {source.kind}")
    n, k = source.view.shape
    for r0, r1, c0, c1 in pieces(n, k):
        part = source.raw(r0, r1, c0, c1)
        size = part.dtype.itemsize
        # Rows of a column slice are not adjacent in the file.
        rows = [(r0, part)] if c1 - c0 == k else [(r0 + i, row) for i, row in enumerate(part)]
        for row, values in rows:
            writer.write(plan.name, (row * k + c0) * size, values)
        advance(part.nbytes)


def _quantize(
    writer: SafetensorsWriter,
    plan: TensorPlan,
    module: ModuleFormat,
    advance: Advance,
    pool: ThreadPoolExecutor,
) -> float:
    """Write every piece; return the relative error. A failing piece undoes the progress."""

    def work(piece: Piece) -> tuple[float, float]:
        return _quantize_piece(writer, plan, module, piece)

    cut = list(pieces(module.n, module.k))
    futures = [pool.submit(work, piece) for piece in cut]
    lost, total, done = 0.0, 0.0, 0
    try:
        for (r0, r1, c0, c1), future in zip(cut, futures, strict=True):
            squares = future.result()
            lost, total = lost + squares[0], total + squares[1]
            part = plan.source.nbytes * (r1 - r0) * (c1 - c0) // (module.n * module.k)
            advance(part)
            done += part
    except BaseException as error:
        # No piece may be written after a restart or after the file is closed.
        for future in futures:
            future.cancel()
        wait(futures)
        if isinstance(error, ScaleRangeError):
            advance(-done)
        raise
    advance(plan.source.nbytes - done)  # what integer division left over
    return math.sqrt(lost / total) if total else 0.0


def _quantize_piece(
    writer: SafetensorsWriter, plan: TensorPlan, module: ModuleFormat, piece: Piece
) -> tuple[float, float]:
    """Write a piece; return the squared norms of what was lost and of its weights."""
    r0, _, c0, _ = piece
    if plan.direct and plan.source.kind in EXACT_TYPES:
        _write_packed(writer, plan.name, module, _rows(plan, module, piece, None), r0, c0)
        return 0.0, 0.0
    weights = plan.source.read(*piece)
    rows = _rows(plan, module, piece, weights)
    _write_packed(writer, plan.name, module, rows, r0, c0)
    total = _square_sum(weights)
    weights -= restore_rows(rows, module.format, module.scale_type)
    return _square_sum(weights), total


def _rows(plan: TensorPlan, module: ModuleFormat, piece: Piece, weights: F32 | None) -> Quantized:
    if plan.direct and isinstance(plan.source, BlockSource):
        return plan.source.read_direct(*piece, module.scale_type)
    if weights is None:
        raise TypeError(f"{plan.name}: {plan.source.kind} has no integers to keep")
    return quantize_rows(weights, module.format, module.form, module.group_size, module.scale_type)


def _write_packed(
    writer: SafetensorsWriter, name: str, module: ModuleFormat, rows: Quantized, r0: int, c0: int
) -> None:
    pack, step = (pack_int4, 8) if module.format == "int4" else (pack_int8, 4)
    block = r0 // ROW_BLOCK
    line = block * (module.k // step) + c0 // step
    writer.write(f"{name}.qweight", line * 64, pack(rows.q))
    group = (block * (module.k // module.group_size) + c0 // module.group_size) * ROW_BLOCK
    scales = pack_groups(rows.scales)
    writer.write(f"{name}.scales", group * scales.itemsize, scales)
    if rows.offsets is not None:
        offsets = pack_groups(rows.offsets)
        suffix = "mins" if module.form == "min" else "zeros"
        writer.write(f"{name}.{suffix}", group * offsets.itemsize, offsets)


def _square_sum(x: np.ndarray) -> float:
    flat = x.reshape(-1)
    return float(np.dot(flat, flat))
