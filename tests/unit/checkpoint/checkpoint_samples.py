"""Small checkpoints that the tests of this folder write: HF folders and GGUF files."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from edge_infer.checkpoint.architectures import expected_tensors

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 50,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
QWEN3 = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "tie_word_embeddings": True,
}
SPARK = {
    **LLAMA,
    "architectures": ["Spark2_5ForCausalLM"],
    "model_type": "spark2_5",
    "hidden_size": 128,
    "head_dim": 20,
}


def random_tensors(
    config: dict[str, Any], dtype: torch.dtype = torch.bfloat16, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Normally distributed tensors for every name that `config` implies."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(item.shape, generator=generator) * 0.05).to(dtype)
        for name, item in expected_tensors(config, Path("config.json")).items()
    }


def write_hf_folder(
    folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], shards: int = 1
) -> Path:
    """Write an HF folder with the reference library, split over `shards` files with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map: dict[str, str] = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        names = list(tensors)[index::shards]
        save_file({name: tensors[name] for name in names}, folder / file)
        weight_map.update(dict.fromkeys(names, file))
    index_text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index_text)
    return folder


def permute_like_llama_cpp(weight: np.ndarray, heads: int) -> np.ndarray:
    """HF q/k rows to the interleaved order of a llama GGUF, pair by pair."""
    size = weight.shape[0] // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for pair in range(size // 2):
            out[head * size + 2 * pair] = weight[head * size + pair]
            out[head * size + 2 * pair + 1] = weight[head * size + size // 2 + pair]
    return out


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of an HF tensor."""
    module, _, suffix = name.rpartition(".")
    if not module.startswith("model.layers."):
        return f"{_GGUF_NAMES[module]}.{suffix}"
    _, _, index, rest = module.split(".", 3)
    return f"blk.{index}.{_GGUF_NAMES[rest]}.{suffix}"


def write_gguf(
    path: Path,
    config: dict[str, Any],
    kind: gguf.GGMLQuantizationType,
    *,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write random weights as `kind` with the reference library; return the HF-order float32.

    What is returned went through the reference's own quantization and dequantization.
    """
    arch = config["model_type"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("none")
    for key, value in (metadata or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    reference: dict[str, np.ndarray] = {}
    rng = np.random.default_rng(seed)
    for name, item in expected_tensors(config, Path("config.json")).items():
        values = (rng.standard_normal(item.shape) * 0.05).astype(np.float32)
        stored = values
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        part = name.split(".")[-2]
        if arch == "llama" and part in heads:
            stored = permute_like_llama_cpp(values, config[heads[part]])
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), stored)
            reference[name] = values
            continue
        packed = gguf.quantize(stored, kind)
        writer.add_tensor(gguf_name(name), packed, raw_dtype=kind)
        # Rows are quantized one by one, so the order of rows does not change a value.
        reference[name] = gguf.dequantize(gguf.quantize(values, kind), kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return reference
