"""Importing a GGUF file: HF tensor names, HF row order, sources that read its blocks."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from edge_infer.checkpoint.architectures import expected_tensors
from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.gguf_file import GgufFile, GgufTensor
from edge_infer.checkpoint.gguf_types import can_dequantize
from edge_infer.checkpoint.importers.gguf_config import config_from_gguf, generation_from_gguf
from edge_infer.checkpoint.importers.names import check_names
from edge_infer.checkpoint.sources import BlockSource, DenseSource, ImportedModel, SourceTensor

_TOP = {"token_embd": "model.embed_tokens", "output": "lm_head", "output_norm": "model.norm"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_NAME = re.compile(r"blk\.(\d{1,6})\.([a-z_]+)\.(weight|bias)")
_FLOATS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64}
# Read by the configuration: the per-frequency factors of llama3 rope scaling.
ROPE_FACTORS = "rope_freqs.weight"


def hf_name(name: str) -> str | None:
    """The HF name of a GGUF tensor of a llama-like architecture, None when it has none."""
    match = _BLOCK_NAME.fullmatch(name)
    if match:
        module = _LAYER.get(match[2])
        return None if module is None else f"model.layers.{int(match[1])}.{module}.{match[3]}"
    stem, _, suffix = name.rpartition(".")
    module = _TOP.get(stem)
    return None if module is None or suffix != "weight" else f"{module}.weight"


def rope_row_order(heads: int, head_dim: int) -> np.ndarray:
    """For each HF row of q_proj or k_proj, the row of a llama GGUF that holds it.

    GGUF stores each head's rows for interleaved rotation (pairs 2i, 2i+1), HF for rotation by
    halves (pairs i, i + head_dim/2).
    """
    halves = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(-1)


def import_gguf(path: Path) -> ImportedModel:
    """Open a GGUF file as an :class:`ImportedModel`; CheckpointError when it cannot be."""
    file = GgufFile(path)
    parts = file.metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise fail(path, f"is one of {parts} parts (split.count): merge them with gguf-split")
    config = config_from_gguf(file)
    expected = expected_tensors(config, path)
    tensors: dict[str, SourceTensor] = {}
    for name, tensor in file.tensors.items():
        if name == ROPE_FACTORS:
            continue
        target = hf_name(name)
        if target is None:
            raise fail(path, "is not known in this architecture", tensor=name)
        tensors[target] = _source(file, tensor, target, _row_order(file, tensor, config, target))
    tensors = check_names(tensors, expected, path)
    licence = file.metadata.get("general.license")
    return ImportedModel(
        origin=path,
        config=config,
        generation_config=generation_from_gguf(config),
        tensors=tensors,
        gguf_metadata=file.metadata,
        licence=licence if isinstance(licence, str) else None,
    )


def _row_order(
    file: GgufFile, tensor: GgufTensor, config: dict[str, Any], name: str
) -> np.ndarray | None:
    if config["model_type"] != "llama":
        return None
    if ".self_attn.q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".self_attn.k_proj." in name:
        heads = config["num_key_value_heads"]
    else:
        return None
    # before the order is made: the counts of the metadata are untrusted
    rows = heads * config["head_dim"]
    if rows != tensor.shape[0]:
        raise fail(
            file.path,
            f"has {tensor.shape[0]} rows, the metadata imply {rows}",
            tensor=tensor.name,
        )
    return rope_row_order(heads, config["head_dim"])


def _source(
    file: GgufFile, tensor: GgufTensor, name: str, order: np.ndarray | None
) -> SourceTensor:
    if len(tensor.shape) > 2:
        raise fail(file.path, f"has {len(tensor.shape)} dims, at most 2 known", tensor=tensor.name)
    blocks = file.blocks(tensor.name)
    kind = tensor.type.name
    if kind in _FLOATS:
        values = blocks.reshape(-1).view(_FLOATS[kind])
        matrix = values.reshape(tensor.shape if len(tensor.shape) == 2 else (-1, 1))
        return DenseSource(name, kind, tensor.shape, matrix, order)
    if not can_dequantize(tensor.type):
        raise fail(file.path, f"type {kind} cannot be converted yet", tensor=tensor.name)
    if len(tensor.shape) != 2:
        raise fail(file.path, f"type {kind} is known for matrices only", tensor=tensor.name)
    return BlockSource(name, tensor.type, tensor.shape, blocks, order)
