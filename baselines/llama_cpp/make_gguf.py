"""Write a GGUF of a real model's shape with random weights, for speed and memory figures.

Speed does not depend on the values, so no download is needed: the block format, tensor names and
types are those that ``llama-quantize MODEL Q4_0`` gives a model with tied embeddings (linears
Q4_0, token embedding Q6_K, norms F32). The tokenizer is "none": token ids in, token ids out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

TILE_ROWS = 128
WEIGHT_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder with grouped-query attention and tied embeddings.

    Attributes:
        arch: GGUF architecture name; "qwen3" has per-head q/k norms.
        layers: number of decoder layers; the other fields are element counts.
        context: context length to declare, in tokens.
    """

    arch: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    rms_eps: float


SHAPES = {
    "qwen3-1.7b": Shape("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, 40960, 1e6, 1e-6),
}


@dataclass(frozen=True)
class Tensor:
    """One tensor to write: GGUF name, type, and shape as [rows, columns] or [columns]."""

    name: str
    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]


def tensors(shape: Shape, embedding: gguf.GGMLQuantizationType) -> Iterator[Tensor]:
    """Yield every tensor of the model in file order."""
    q4 = gguf.GGMLQuantizationType.Q4_0
    f32 = gguf.GGMLQuantizationType.F32
    q_rows, kv_rows = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield Tensor("token_embd.weight", embedding, (shape.vocab, shape.hidden))
    for layer in range(shape.layers):
        prefix = f"blk.{layer}"
        yield Tensor(f"{prefix}.attn_norm.weight", f32, (shape.hidden,))
        yield Tensor(f"{prefix}.attn_q.weight", q4, (q_rows, shape.hidden))
        yield Tensor(f"{prefix}.attn_k.weight", q4, (kv_rows, shape.hidden))
        yield Tensor(f"{prefix}.attn_v.weight", q4, (kv_rows, shape.hidden))
        if shape.arch == "qwen3":
            yield Tensor(f"{prefix}.attn_q_norm.weight", f32, (shape.head_dim,))
            yield Tensor(f"{prefix}.attn_k_norm.weight", f32, (shape.head_dim,))
        yield Tensor(f"{prefix}.attn_output.weight", q4, (shape.hidden, q_rows))
        yield Tensor(f"{prefix}.ffn_norm.weight", f32, (shape.hidden,))
        yield Tensor(f"{prefix}.ffn_gate.weight", q4, (shape.intermediate, shape.hidden))
        yield Tensor(f"{prefix}.ffn_up.weight", q4, (shape.intermediate, shape.hidden))
        yield Tensor(f"{prefix}.ffn_down.weight", q4, (shape.hidden, shape.intermediate))
    yield Tensor("output_norm.weight", f32, (shape.hidden,))


def _half(value: float, count: int) -> np.ndarray:
    """Return `count` little-endian float16 copies of `value` as bytes [count, 2]."""
    return np.full((count, 1), value, dtype="<f2").view(np.uint8)


def q4_0_blocks(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return random Q4_0 blocks, uint8 [count, 18]: a float16 scale, then 32 nibbles.

    A uniform nibble minus 8 has a standard deviation of 4.61; the scale brings it to WEIGHT_STD.
    """
    codes = rng.integers(0, 256, (count, 16), dtype=np.uint8)
    return np.concatenate([_half(WEIGHT_STD / 4.61, count), codes], axis=1)


def q6_k_blocks(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return random Q6_K blocks, uint8 [count, 210].

    Layout: 128 bytes of low nibbles, 64 bytes of high pairs, 16 int8 scales, a float16 scale.
    A uniform 6-bit code minus 32 has a standard deviation of 18.5; the int8 scales are near 64.
    """
    codes = rng.integers(0, 256, (count, 192), dtype=np.uint8)
    scales = rng.integers(48, 81, (count, 16), dtype=np.uint8)
    return np.concatenate([codes, scales, _half(WEIGHT_STD / (18.5 * 64), count)], axis=1)


def q8_0_blocks(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return random Q8_0 blocks, uint8 [count, 34]: a float16 scale, then 32 int8 in +-127."""
    codes = rng.integers(-127, 128, (count, 32), dtype=np.int8).view(np.uint8)
    return np.concatenate([_half(WEIGHT_STD / 73.6, count), codes], axis=1)


BLOCKS = {
    gguf.GGMLQuantizationType.Q4_0: q4_0_blocks,
    gguf.GGMLQuantizationType.Q6_K: q6_k_blocks,
    gguf.GGMLQuantizationType.Q8_0: q8_0_blocks,
}


def row_bytes(tensor: Tensor) -> int:
    """Return the bytes of one row of a quantized tensor.

    Raises:
        ValueError: if the columns are not whole blocks or the rows not whole tiles.
    """
    rows, columns = tensor.shape
    block, size = gguf.GGML_QUANT_SIZES[tensor.kind]
    if columns % block:
        raise ValueError(f"{tensor.name}: {columns} columns are not a multiple of {block}")
    if rows % TILE_ROWS:
        raise ValueError(f"{tensor.name}: {rows} rows are not a multiple of {TILE_ROWS}")
    return columns // block * size


def data(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    """Return a tensor's content: ones for norms, else one random tile of rows seen repeatedly.

    The result is a broadcast view, so memory stays at one tile however large the tensor is.
    """
    if tensor.kind == gguf.GGMLQuantizationType.F32:
        return np.ones(tensor.shape, dtype=np.float32)
    per_row = row_bytes(tensor)
    block_bytes = gguf.GGML_QUANT_SIZES[tensor.kind][1]
    blocks = BLOCKS[tensor.kind](rng, TILE_ROWS * per_row // block_bytes)
    tile = np.ascontiguousarray(blocks).reshape(-1).view(np.dtype((np.void, per_row)))
    return np.broadcast_to(tile, (tensor.shape[0] // TILE_ROWS, TILE_ROWS))


def write(path: Path, shape: Shape, embedding: str = "Q6_K", seed: int = 0) -> int:
    """Write the model and return the file's size in bytes.

    The file appears under its name only when it is complete.
    """
    embedding_kind = gguf.GGMLQuantizationType[embedding]
    layout = list(tensors(shape, embedding_kind))
    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, shape.arch)
    writer.add_name("random weights")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("none")
    for tensor in layout:
        if tensor.kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor_info(
                tensor.name, tensor.shape, np.dtype(np.float32), 4 * tensor.shape[0]
            )
            continue
        size = tensor.shape[0] * row_bytes(tensor)
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.float16), size, raw_dtype=tensor.kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for tensor in layout:
        writer.write_tensor_data(data(tensor, rng))
    writer.close()
    partial.rename(path)
    return path.stat().st_size


def main() -> int:
    """Write one model from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-1.7b")
    parser.add_argument("--embedding", choices=["Q6_K", "Q8_0"], default="Q6_K")
    parser.add_argument("--layers", type=int, help="fewer layers than the real model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    if options.layers is not None:
        if not 1 <= options.layers <= shape.layers:
            parser.error(f"--layers is {options.layers}, must be 1 to {shape.layers}")
        shape = replace(shape, layers=options.layers)
    size = write(options.path, shape, options.embedding, options.seed)
    print(f"{options.path}: {size} bytes, random weights, shape {options.shape}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
