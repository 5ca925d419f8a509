"""Llama: also SmolLM2, Llama 3 and Mistral, which differ in their configuration only."""

from __future__ import annotations

from edge_infer.models.config import Config
from edge_infer.models.layers import Shape, attention_block, gate_function, mlp_block, rope
from edge_infer.program.builder import ProgramBuilder

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


def build(b: ProgramBuilder, config: Config) -> None:
    """Describe the model."""
    shape = Shape.read(config, tied_by_default=False)
    config.unsupported("pretraining_tp", 1)
    window = 0 if config.get("sliding_window") is None else config.integer("sliding_window")
    function = gate_function(config)
    tables = rope(b, shape, config.rope_parameters())

    x = b.embed("model.embed_tokens")
    for i in range(shape.num_layers):
        layer = f"model.layers.{i}"
        attention_block(b, x, layer, shape, rope=tables, window=window)
        mlp_block(b, x, layer, shape, function)
    h = b.rms_norm(x, "model.norm.weight", shape.eps)
    b.logits(h, "model.embed_tokens" if shape.tie_word_embeddings else "lm_head")
