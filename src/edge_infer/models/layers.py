"""The parts that decoder architectures share, composed by the model files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge_infer.models.config import Config, ConfigError
from edge_infer.models.rope import RopeSpec
from edge_infer.program.builder import HeadLayout, ProgramBuilder, pad16
from edge_infer.program.spec import Tensor

GATE_FUNCTIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


@dataclass(frozen=True)
class Shape:
    """The sizes every decoder's config.json gives."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool

    @classmethod
    def read(cls, config: Config, *, tied_by_default: bool) -> Shape:
        """Read and cross-check the sizes. Raises ConfigError."""
        hidden_size = config.integer("hidden_size", limit=1 << 20)
        num_heads = config.integer("num_attention_heads", limit=4096)
        num_kv_heads = config.integer("num_key_value_heads", num_heads, limit=4096)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads {num_heads} is no multiple of "
                f"num_key_value_heads {num_kv_heads}"
            )
        head_dim = config.integer("head_dim", max(1, hidden_size // num_heads), limit=256)
        if head_dim % 8:
            raise ConfigError(f"config.json: head_dim {head_dim} is not a multiple of 8")
        return cls(
            hidden_size=hidden_size,
            num_layers=config.integer("num_hidden_layers", limit=4096),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            eps=config.number("rms_norm_eps", 1e-6),
            max_position_embeddings=config.integer("max_position_embeddings", 2048),
            tie_word_embeddings=config.flag("tie_word_embeddings", tied_by_default),
        )


def rope(b: ProgramBuilder, shape: Shape, parameters: dict[str, Any]) -> int:
    """Register the rotary embedding of one kind of layer; returns its id."""
    return b.rope(RopeSpec(parameters, shape.head_dim, shape.max_position_embeddings))


def separate_heads(shape: Shape) -> HeadLayout:
    """Columns when q, k and v are three linears side by side."""
    q = pad16(shape.num_heads * shape.head_dim)
    kv = pad16(shape.num_kv_heads * shape.head_dim)
    return HeadLayout(q=0, k=q, v=q + kv)


def attention_block(
    b: ProgramBuilder,
    x: Tensor,
    prefix: str,
    shape: Shape,
    *,
    rope: int,
    window: int = 0,
    head_norms: bool = False,
) -> None:
    """x += attention(norm(x)), with q_proj, k_proj, v_proj and o_proj."""
    attn = f"{prefix}.self_attn"
    h = b.rms_norm(x, f"{prefix}.input_layernorm.weight", shape.eps)
    qkv = b.linear(h, [f"{attn}.q_proj", f"{attn}.k_proj", f"{attn}.v_proj"])
    out = b.attention(
        qkv,
        separate_heads(shape),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        rope=rope,
        window=window,
        q_norm=f"{attn}.q_norm.weight" if head_norms else None,
        k_norm=f"{attn}.k_norm.weight" if head_norms else None,
        eps=shape.eps,
    )
    b.add_linear(x, out, f"{attn}.o_proj")


def mlp_block(b: ProgramBuilder, x: Tensor, prefix: str, shape: Shape, function: str) -> None:
    """x += down(function(gate) * up) of norm(x)."""
    h = b.rms_norm(x, f"{prefix}.post_attention_layernorm.weight", shape.eps)
    m = b.gated(h, f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj", function)
    b.add_linear(x, m, f"{prefix}.mlp.down_proj")


def gate_function(config: Config, default: str = "silu") -> str:
    """The MLP's activation, from hidden_act."""
    return GATE_FUNCTIONS[config.choice("hidden_act", GATE_FUNCTIONS, default)]
