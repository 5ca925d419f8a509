"""Spark-X2.5 in plain numpy, float64, written from the meaning of its configuration.

Independent of the product: dense matrices, whole sequences, no cache.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIG: dict[str, Any] = {
    "architectures": ["Spark2_5ForCausalLM"],
    "model_type": "spark2_5",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "headwise_attn_output_gate": True,
    "sliding_window": 16,
    "vocab_size": 320,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "full_attention": {"rope_theta": 5000000, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_theta": 10000, "partial_rotary_factor": 1.0},
    },
}


def write_checkpoint(folder: Path, seed: int = 5) -> dict[str, NDArray[np.float32]]:
    """A random float32 checkpoint with Spark's tensor names."""
    c = CONFIG
    rng = np.random.default_rng(seed)
    hidden, inner, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]

    def matrix(n: int, k: int) -> NDArray[np.float32]:
        return (rng.standard_normal((n, k)) * 0.08).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)

    tensors = {
        "model.embedding.weight": matrix(c["vocab_size"], hidden),
        "model.norm.weight": norm(),
        "lm_head.weight": matrix(c["vocab_size"], hidden),
    }
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        tensors |= {
            f"{p}.input_layernorm.weight": norm(),
            f"{p}.post_attention_layernorm.weight": norm(),
            f"{p}.self_attn.q_k_v_proj.weight": matrix((heads + 2 * kv_heads) * d, hidden),
            f"{p}.self_attn.g_proj.weight": matrix(heads, hidden) * 4,
            f"{p}.self_attn.out_proj.weight": matrix(hidden, heads * d),
            f"{p}.mlp.gate_proj.weight": matrix(inner, hidden),
            f"{p}.mlp.up_proj.weight": matrix(inner, hidden),
            f"{p}.mlp.down_proj.weight": matrix(hidden, inner),
        }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(c))
    return tensors


def rotate(x: Floats, theta: float, partial: float) -> Floats:
    """RoPE on the first `partial` of each head; pairs are (i, i + half). x: [tokens, heads, d]."""
    dim = int(x.shape[-1] * partial)
    half = dim // 2
    frequencies = theta ** (-np.arange(half) * 2 / dim)
    angles = np.arange(len(x))[:, None, None] * frequencies
    a, b = x[..., :half], x[..., half:dim]
    return np.concatenate(
        [
            a * np.cos(angles) - b * np.sin(angles),
            b * np.cos(angles) + a * np.sin(angles),
            x[..., dim:],
        ],
        axis=-1,
    )


def rms_norm(x: Floats, weight: NDArray[np.float32]) -> Floats:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight


def logits(tensors: dict[str, NDArray[np.float32]], tokens: list[int]) -> Floats:
    """Logits of every token, [tokens, vocab_size]."""
    c = CONFIG
    heads, kv_heads, d = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    erf = np.vectorize(math.erf)
    x = tensors["model.embedding.weight"][tokens].astype(np.float64)
    n = len(tokens)
    query, key = np.arange(n)[:, None], np.arange(n)[None, :]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}"
        full = (i + 1) % 4 == 0
        rope = c["rope_parameters"]["full_attention" if full else "sliding_attention"]
        visible = key <= query
        if not full:
            visible &= key > query - c["sliding_window"]

        h = rms_norm(x, tensors[f"{p}.input_layernorm.weight"])
        qkv = h @ tensors[f"{p}.self_attn.q_k_v_proj.weight"].T.astype(np.float64)
        q, k, v = np.split(qkv, [heads * d, (heads + kv_heads) * d], axis=-1)
        q = rotate(q.reshape(n, heads, d), rope["rope_theta"], rope["partial_rotary_factor"])
        k = rotate(k.reshape(n, kv_heads, d), rope["rope_theta"], rope["partial_rotary_factor"])
        v = v.reshape(n, kv_heads, d)
        gate = 1 / (1 + np.exp(-(h @ tensors[f"{p}.self_attn.g_proj.weight"].T)))
        out = np.empty((n, heads, d))
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = np.where(visible, q[:, head] @ k[:, kv].T / math.sqrt(d), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, kv]
        out *= gate[:, :, None]
        x = x + out.reshape(n, -1) @ tensors[f"{p}.self_attn.out_proj.weight"].T

        h = rms_norm(x, tensors[f"{p}.post_attention_layernorm.weight"])
        g = h @ tensors[f"{p}.mlp.gate_proj.weight"].T
        gelu = g * 0.5 * (1 + erf(g / math.sqrt(2)))
        x = (
            x
            + (gelu * (h @ tensors[f"{p}.mlp.up_proj.weight"].T))
            @ tensors[f"{p}.mlp.down_proj.weight"].T
        )
    return rms_norm(x, tensors["model.norm.weight"]) @ tensors["lm_head.weight"].T
