"""An HF configuration from GGUF metadata, for the architectures that have one here."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.gguf_file import GgufFile

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_UNSUPPORTED = ("expert_count", "attention.sliding_window", "attention.logit_softcapping")
_TOKEN_IDS = {
    "bos_token_id": ("bos_token_id",),
    "eos_token_id": ("eos_token_id", "eot_token_id", "eom_token_id"),
    "pad_token_id": ("padding_token_id",),
}
MAX_VOCAB = 1 << 24


class _Metadata:
    """Typed reads of one architecture's keys; errors name the key."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.path: Path = file.path
        self._values = file.metadata
        self._prefix = architecture

    def get(self, key: str) -> Any:
        return self._values.get(f"{self._prefix}.{key}")

    def fail(self, key: str, message: str) -> Exception:
        return fail(self.path, f"metadata {self._prefix}.{key} {message}")

    def count(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]  # one entry per layer, all alike
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self.fail(key, f"is {value!r}, expected a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.fail(key, f"is {value!r}, expected a positive number")
        # The shortest decimal of the stored float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(value)))


def config_from_gguf(file: GgufFile) -> dict[str, Any]:
    """The config.json of the model in `file`; CheckpointError when it is not a known kind."""
    kind = file.metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise fail(file.path, f"general.architecture is {kind!r}, known are: {known}")
    meta = _Metadata(file, kind)
    for key in _UNSUPPORTED:
        if meta.get(key):
            raise meta.fail(key, f"is {meta.get(key)!r}, which is not supported for {kind}")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise fail(file.path, "is missing or not a matrix", tensor="token_embd.weight")
    hidden, heads = meta.count("embedding_length"), meta.count("attention.head_count")
    head_dim = meta.count("attention.key_length", hidden // heads)
    if meta.count("attention.value_length", head_dim) != head_dim:
        raise meta.fail("attention.value_length", f"differs from key_length {head_dim}")
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": meta.count("feed_forward_length"),
        "num_hidden_layers": meta.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": meta.count("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": "bfloat16",
    }
    if head_dim % 2:
        raise meta.fail("attention.key_length", f"is {head_dim}, expected an even number")
    if kind != "qwen2":
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    rotary = meta.count("rope.dimension_count", head_dim)
    if rotary != head_dim:
        if rotary > head_dim:
            raise meta.fail("rope.dimension_count", f"is {rotary}, head_dim {head_dim}")
        config["partial_rotary_factor"] = rotary / head_dim
    scaling = _rope_scaling(file, meta, config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    config.update(_token_ids(file, config["vocab_size"]))
    return config


def generation_from_gguf(config: dict[str, Any]) -> dict[str, Any]:
    """A generation_config.json with the token ids of `config`."""
    return {key: config[key] for key in _TOKEN_IDS if key in config}


def _token_ids(file: GgufFile, vocab_size: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field, keys in _TOKEN_IDS.items():
        ids: list[int] = []
        for key in keys:
            value = file.metadata.get(f"tokenizer.ggml.{key}")
            if value is None or value in ids:
                continue
            if type(value) is not int or not 0 <= value < vocab_size:
                raise fail(
                    file.path,
                    f"metadata tokenizer.ggml.{key} is {value!r}, expected 0..{vocab_size - 1}",
                )
            ids.append(value)
        if ids:
            out[field] = ids[0] if len(ids) == 1 else ids
    return out


def _rope_scaling(file: GgufFile, meta: _Metadata, config: dict[str, Any]) -> dict[str, Any] | None:
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:
        return _llama3_scaling(file, config)
    kind = meta.get("rope.scaling.type")
    if kind is None and meta.get("rope.scale_linear") is not None:
        return {"rope_type": "linear", "factor": meta.number("rope.scale_linear")}
    if kind in (None, "none"):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": meta.number("rope.scaling.factor")}
    if kind != "yarn":
        raise meta.fail("rope.scaling.type", f"is {kind!r}, known are: none, linear, yarn")
    scaling = {
        "rope_type": "yarn",
        "factor": meta.number("rope.scaling.factor"),
        "original_max_position_embeddings": meta.count("rope.scaling.original_context_length"),
    }
    for key, field in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if meta.get(f"rope.scaling.{key}") is not None:
            scaling[field] = meta.number(f"rope.scaling.{key}")
    return scaling


def _llama3_scaling(file: GgufFile, config: dict[str, Any]) -> dict[str, Any]:
    """Recover llama3 scaling from the factors it was baked into, and check that it gives them.

    GGUF keeps one divisor per frequency, not the four parameters. Every published model uses
    low 1, high 4 and an original context of 8192; anything else is refused, not approximated.
    """
    name = "rope_freqs.weight"
    tensor = file.tensors[name]
    if tensor.type.name != "F32" or tensor.shape != (config["head_dim"] // 2,):
        raise fail(file.path, f"is {tensor.type.name} {list(tensor.shape)}", tensor=name)
    stored = file.blocks(name).reshape(-1).view(np.float32).astype(np.float64)
    factor, low, high, original = float(stored.max()), 1.0, 4.0, 8192
    if not math.isfinite(factor) or factor < 1:
        raise fail(file.path, f"its largest factor is {factor}", tensor=name)
    exponents = np.arange(stored.size) / stored.size
    wavelengths = 2 * math.pi * config["rope_theta"] ** exponents
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(stored, expected, rtol=1e-4):
        raise fail(
            file.path,
            "does not match llama3 rope scaling with low_freq_factor 1, high_freq_factor 4 and "
            "original context 8192; other parameters cannot be recovered from it",
            tensor=name,
        )
    return {
        "rope_type": "llama3",
        "factor": float(str(np.float32(factor))),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
