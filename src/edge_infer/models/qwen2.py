"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v."""

from __future__ import annotations

from edge_infer.models.config import Config
from edge_infer.models.layers import Shape, attention_block, gate_function, mlp_block, rope
from edge_infer.program.builder import ProgramBuilder

ARCHITECTURES = ("Qwen2ForCausalLM",)


def build(b: ProgramBuilder, config: Config) -> None:
    """Describe the model; the builder finds the biases in the checkpoint."""
    shape = Shape.read(config, tied_by_default=False)
    windows = sliding_windows(config, shape.num_layers)
    function = gate_function(config)
    tables = rope(b, shape, config.rope_parameters())

    x = b.embed("model.embed_tokens")
    for i, window in enumerate(windows):
        layer = f"model.layers.{i}"
        attention_block(b, x, layer, shape, rope=tables, window=window)
        mlp_block(b, x, layer, shape, function)
    h = b.rms_norm(x, "model.norm.weight", shape.eps)
    b.logits(h, "model.embed_tokens" if shape.tie_word_embeddings else "lm_head")


def sliding_windows(config: Config, num_layers: int) -> list[int]:
    """Each layer's window, 0 for full attention, by Qwen's fields.

    Without layer_types, layers from max_window_layers on slide when use_sliding_window is set.
    """
    if not config.flag("use_sliding_window", False):
        return [0] * num_layers
    window = config.integer("sliding_window", 4096)
    if config.get("layer_types") is not None:
        types = config.layer_types(num_layers)
        return [window if t == "sliding_attention" else 0 for t in types]
    first = config.integer("max_window_layers", 28)
    return [window if i >= first else 0 for i in range(num_layers)]
