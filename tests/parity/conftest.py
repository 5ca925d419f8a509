"""Tiny random checkpoints of each architecture, made by transformers, the reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from edge_infer import _native

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "initializer_range": 0.08,
}

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def _rope(rope_type: str, **extra: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10000.0, **extra}}


# name -> (config class, model class, differences from SIZES)
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "llama-tied": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {
            "tie_word_embeddings": True,
            "hidden_size": 96,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 64,
        },
    ),
    "llama-llama3-rope": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama-linear-rope": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        _rope("linear", factor=4.0),
    ),
    "llama-yarn-rope": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        _rope("yarn", factor=4.0, original_max_position_embeddings=64),
    ),
    "llama-dynamic-rope": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {**_rope("dynamic", factor=2.0), "max_position_embeddings": 48},
    ),
    "mistral-window": (
        transformers.MistralConfig,
        transformers.MistralForCausalLM,
        {"sliding_window": 24},
    ),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    "qwen2-window": (
        transformers.Qwen2Config,
        transformers.Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {}),
    "qwen3-wide-head": (
        transformers.Qwen3Config,
        transformers.Qwen3ForCausalLM,
        {"head_dim": 80, "num_attention_heads": 6, "num_key_value_heads": 2},
    ),
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Any]]:
    """tiny_model(name, dtype) -> (folder, float32 transformers model of the same values)."""
    made: dict[tuple[str, str], tuple[Path, Any]] = {}

    def make(name: str, dtype: str = "f32") -> tuple[Path, Any]:
        if (name, dtype) not in made:
            config_class, model_class, differences = MODELS[name]
            torch.manual_seed(1234)
            # The tests compute with eager attention, the plainest definition.
            config = config_class(**{**SIZES, **differences}, attn_implementation="eager")
            model = model_class(config).eval()
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if parameter_name.endswith(("norm.weight", "bias")):
                        parameter.add_(torch.randn_like(parameter) * 0.1)
            folder = tmp_path_factory.mktemp(f"{name}-{dtype}")
            model.to(DTYPES[dtype]).save_pretrained(folder)
            # Read again: a cast of the module would round its RoPE frequencies too.
            reference = model_class.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            )
            made[name, dtype] = folder, reference.eval()
        return made[name, dtype]

    return make


@pytest.fixture(params=_native.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Every kernel path this machine runs."""
    return str(request.param)
