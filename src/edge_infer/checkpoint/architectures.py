"""Which tensors a checkpoint of each known architecture holds, under their HF names and shapes.

Importers check sources against it, so that a missing or foreign tensor is an error before anything
is written, and it says which weights are quantized.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_infer.checkpoint.errors import fail
from edge_infer.checkpoint.format import MAX_DIM

# Tensors that some exporters store although they follow from the configuration.
_DERIVED = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")
MAX_LAYERS = 4096


@dataclass(frozen=True)
class ExpectedTensor:
    """`role`: ``head`` (embedding, output head), ``linear``, or ``dense`` (kept as it is)."""

    name: str
    shape: tuple[int, ...]
    role: str


@dataclass(frozen=True)
class _Dims:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int


def is_derived(name: str) -> bool:
    """Whether a tensor of this name may be ignored because the configuration implies it."""
    return _DERIVED.search(name) is not None


def architecture(config: Mapping[str, Any], path: Path) -> str:
    """The one architecture named by config.json; CheckpointError when it is not a known one."""
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or str(names[0]) not in _LAYERS:
        raise fail(path, f"architectures is {names!r}, known are: {', '.join(_LAYERS)}")
    return str(names[0])


def expected_tensors(config: Mapping[str, Any], path: Path) -> dict[str, ExpectedTensor]:
    """All tensors of the model that `config` describes; `path` is named in errors."""
    name = architecture(config, path)
    dims = _dims(config, path)
    spark = name == "Spark2_5ForCausalLM"
    embedding = "model.embedding" if spark else "model.embed_tokens"
    items = [ExpectedTensor(f"{embedding}.weight", (dims.vocab, dims.hidden), "head")]
    for index in range(dims.layers):
        for item in _LAYERS[name](config, dims):
            items.append(ExpectedTensor(f"model.layers.{index}.{item.name}", item.shape, item.role))
    items.append(ExpectedTensor("model.norm.weight", (dims.hidden,), "dense"))
    if not config.get("tie_word_embeddings", False):
        items.append(ExpectedTensor("lm_head.weight", (dims.vocab, dims.hidden), "head"))
    return {item.name: item for item in items}


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, ExpectedTensor], path: Path
) -> None:
    """Refuse what the configuration does not describe; one error lists all missing, all unknown.

    `shapes` are those of the stored tensors by full name, packed ones as if they were dense.
    """
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise fail(path, f"{len(missing)} tensors are missing: {', '.join(missing)}")
    unknown = [
        name
        for name in shapes
        if name not in expected and name != "lm_head.weight" and not is_derived(name)
    ]
    if unknown:
        raise fail(path, f"{len(unknown)} tensors are not known: {', '.join(unknown)}")
    for name, item in expected.items():
        if shapes[name] != item.shape:
            raise fail(
                path,
                f"shape is {list(shapes[name])}, the configuration implies {list(item.shape)}",
                tensor=name,
            )


def _dims(config: Mapping[str, Any], path: Path) -> _Dims:
    def positive(field: str, default: int | None = None, limit: int = MAX_DIM) -> int:
        value = config.get(field)
        value = default if value is None else value
        if type(value) is not int or not 0 < value <= limit:
            raise fail(path, f"{field} is {value!r}, expected an integer in 1..{limit}")
        return value

    hidden, heads = positive("hidden_size"), positive("num_attention_heads")
    return _Dims(
        hidden=hidden,
        intermediate=positive("intermediate_size"),
        layers=positive("num_hidden_layers", limit=MAX_LAYERS),
        heads=heads,
        kv_heads=positive("num_key_value_heads", heads),
        head_dim=positive("head_dim", hidden // heads),
        vocab=positive("vocab_size"),
    )


def _norms(dims: _Dims) -> Iterator[ExpectedTensor]:
    yield ExpectedTensor("input_layernorm.weight", (dims.hidden,), "dense")
    yield ExpectedTensor("post_attention_layernorm.weight", (dims.hidden,), "dense")


def _linear(name: str, n: int, k: int, bias: bool = False) -> Iterator[ExpectedTensor]:
    yield ExpectedTensor(f"{name}.weight", (n, k), "linear")
    if bias:
        yield ExpectedTensor(f"{name}.bias", (n,), "dense")


def _attention(dims: _Dims, qkv_bias: bool, out_bias: bool) -> Iterator[ExpectedTensor]:
    q, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    yield from _linear("self_attn.q_proj", q, dims.hidden, qkv_bias)
    yield from _linear("self_attn.k_proj", kv, dims.hidden, qkv_bias)
    yield from _linear("self_attn.v_proj", kv, dims.hidden, qkv_bias)
    yield from _linear("self_attn.o_proj", dims.hidden, q, out_bias)


def _mlp(dims: _Dims, bias: bool = False) -> Iterator[ExpectedTensor]:
    yield from _linear("mlp.gate_proj", dims.intermediate, dims.hidden, bias)
    yield from _linear("mlp.up_proj", dims.intermediate, dims.hidden, bias)
    yield from _linear("mlp.down_proj", dims.hidden, dims.intermediate, bias)


def _llama(config: Mapping[str, Any], dims: _Dims) -> Iterator[ExpectedTensor]:
    bias = bool(config.get("attention_bias", False))
    yield from _norms(dims)
    yield from _attention(dims, bias, bias)
    yield from _mlp(dims, bool(config.get("mlp_bias", False)))


def _qwen2(_: Mapping[str, Any], dims: _Dims) -> Iterator[ExpectedTensor]:
    yield from _norms(dims)
    yield from _attention(dims, qkv_bias=True, out_bias=False)
    yield from _mlp(dims)


def _qwen3(config: Mapping[str, Any], dims: _Dims) -> Iterator[ExpectedTensor]:
    bias = bool(config.get("attention_bias", False))
    yield from _norms(dims)
    yield from _attention(dims, bias, bias)
    yield ExpectedTensor("self_attn.q_norm.weight", (dims.head_dim,), "dense")
    yield ExpectedTensor("self_attn.k_norm.weight", (dims.head_dim,), "dense")
    yield from _mlp(dims)


def _spark(config: Mapping[str, Any], dims: _Dims) -> Iterator[ExpectedTensor]:
    q, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    yield from _norms(dims)
    yield from _linear("self_attn.q_k_v_proj", q + 2 * kv, dims.hidden)
    if config.get("headwise_attn_output_gate", True):
        # One row per head: too few for packing to pay, and it scales whole heads.
        yield ExpectedTensor("self_attn.g_proj.weight", (dims.heads, dims.hidden), "dense")
    yield from _linear("self_attn.out_proj", dims.hidden, q)
    yield from _mlp(dims)


_LAYERS: dict[str, Callable[[Mapping[str, Any], _Dims], Iterator[ExpectedTensor]]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _llama,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Spark2_5ForCausalLM": _spark,
}
