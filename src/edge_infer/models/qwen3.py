"""Qwen3: no attention bias, RMSNorm on every head of q and k."""

from __future__ import annotations

from edge_infer.models.config import Config
from edge_infer.models.layers import Shape, attention_block, gate_function, mlp_block, rope
from edge_infer.models.qwen2 import sliding_windows
from edge_infer.program.builder import ProgramBuilder

ARCHITECTURES = ("Qwen3ForCausalLM",)


def build(b: ProgramBuilder, config: Config) -> None:
    """Describe the model."""
    shape = Shape.read(config, tied_by_default=False)
    windows = sliding_windows(config, shape.num_layers)
    function = gate_function(config)
    tables = rope(b, shape, config.rope_parameters())

    x = b.embed("model.embed_tokens")
    for i, window in enumerate(windows):
        layer = f"model.layers.{i}"
        attention_block(b, x, layer, shape, rope=tables, window=window, head_norms=True)
        mlp_block(b, x, layer, shape, function)
    h = b.rms_norm(x, "model.norm.weight", shape.eps)
    b.logits(h, "model.embed_tokens" if shape.tie_word_embeddings else "lm_head")
