"""Checkpoints: the cpu_int4 format, its reader and writer, importers and quantizers."""

from edge_infer.checkpoint.errors import CheckpointError
from edge_infer.checkpoint.format import LinearTensor, dequantize
from edge_infer.checkpoint.reader import Checkpoint, TensorReport, open_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "LinearTensor",
    "TensorReport",
    "dequantize",
    "open_checkpoint",
]
