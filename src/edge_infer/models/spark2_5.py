"""Spark-X2.5: sliding and full layers mixed, RoPE by layer type, a gate per head, GELU.

Source: the configuration of Spark2_5ForCausalLM (vLLM's `spark2_5` plugin, 0.1.0).
"""

from __future__ import annotations

from edge_infer.models.config import Config
from edge_infer.models.layers import Shape, mlp_block, rope
from edge_infer.program.builder import HeadLayout, ProgramBuilder, pad16
from edge_infer.program.spec import Tensor

ARCHITECTURES = ("Spark2_5ForCausalLM",)


def build(b: ProgramBuilder, config: Config) -> None:
    """Describe the model."""
    shape = Shape.read(config, tied_by_default=False)
    gated = config.flag("headwise_attn_output_gate", True)
    window = config.integer("sliding_window", 512)
    if config.get("layer_types") is None:  # three sliding layers, then a full one
        types = [
            "full_attention" if (i + 1) % 4 == 0 else "sliding_attention"
            for i in range(shape.num_layers)
        ]
    else:
        types = config.layer_types(shape.num_layers)
    tables = {t: rope(b, shape, config.rope_parameters(t)) for t in sorted(set(types))}

    x = b.embed("model.embedding")
    for i, layer_type in enumerate(types):
        layer = f"model.layers.{i}"
        sliding = layer_type == "sliding_attention"
        _attention(b, x, layer, shape, tables[layer_type], window if sliding else 0, gated)
        mlp_block(b, x, layer, shape, "gelu")
    h = b.rms_norm(x, "model.norm.weight", shape.eps)
    b.logits(h, "model.embedding" if shape.tie_word_embeddings else "lm_head")


def _attention(
    b: ProgramBuilder, x: Tensor, layer: str, shape: Shape, tables: int, window: int, gated: bool
) -> None:
    """x += out_proj(attention * sigmoid(g_proj)), with q, k and v in one linear."""
    attn = f"{layer}.self_attn"
    q = shape.num_heads * shape.head_dim
    kv = shape.num_kv_heads * shape.head_dim
    h = b.rms_norm(x, f"{layer}.input_layernorm.weight", shape.eps)
    names = [f"{attn}.q_k_v_proj", *([f"{attn}.g_proj"] if gated else [])]
    qkv = b.linear(h, names)
    out = b.attention(
        qkv,
        HeadLayout(q=0, k=q, v=q + kv, gate=pad16(q + 2 * kv) if gated else -1),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rope=tables,
        window=window,
    )
    b.add_linear(x, out, f"{attn}.out_proj")
