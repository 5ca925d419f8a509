"""The engine's settings, validated before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KvDtype = Literal["bf16", "f16", "f32", "int8"]
Activations = Literal["auto", "int8", "bf16"]

# Rounding to int8 is heard in small models: over SmolLM2-135M it costs 0.3% of perplexity and
# 20 times the KL divergence of bf16 (results/). From this many weights on, speed decides.
SMALL_MODEL_WEIGHTS = 1_000_000_000

# Without a max_model_len the context is the checkpoint's maximum, up to this many tokens.
DEFAULT_MAX_MODEL_LEN = 8192


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What `Engine` accepts beside the model.

    max_model_len: longest sequence, prompt and output, in tokens; None for the
        checkpoint's maximum up to 8,192, less when memory is short.
    max_num_seqs: sequences that run at once.
    max_num_batched_tokens: tokens of one step; longer prompts are prefilled in chunks.
    kv_dtype: type of the KV cache.
    kv_budget_bytes: bytes of the KV cache, honoured to one block; None to fit
        max_num_seqs sequences, less when memory is short.
    block_size: tokens of a KV block.
    prefix_caching: whether sequences take computed KV blocks that their tokens begin with.
    activations: how 4- and 8-bit weights see their input: int8 per group (W4A8), bf16
        (W4A16), or auto: bf16 below a billion weights, int8 from there on.
    batch_invariant: a sequence's logits have the same bits alone or beside others, in any
        prefill chunks and over reused KV blocks. Costs decode speed at long contexts.
    num_speculative_tokens: draft tokens that a decode may verify in one step, looked up in the
        sequence itself; 0 for none. Outputs stay what they are without; see docs/python-api.md
        for where it helps.
    threads: None for as many as the machine grants.
    isa: kernel path; None for EDGE_INFER_ISA or the best available.
    memory_limit_bytes: total memory this process may plan for; None for what the
        machine and its cgroups allow.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    kv_dtype: KvDtype = "bf16"
    kv_budget_bytes: int | None = None
    block_size: int = 16
    prefix_caching: bool = True
    activations: Activations = "auto"
    batch_invariant: bool = False
    num_speculative_tokens: int = 0
    threads: int | None = None
    isa: str | None = None
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "max_model_len": (1, 1 << 24),
            "max_num_seqs": (1, 4096),
            "max_num_batched_tokens": (1, 1 << 16),
            "kv_budget_bytes": (1, 1 << 50),
            "num_speculative_tokens": (0, 16),
            "threads": (1, 1024),
            "memory_limit_bytes": (1, 1 << 50),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} must be an integer of {low} to {high}, not {value!r}")
        choices: dict[str, tuple[object, ...]] = {
            "kv_dtype": ("bf16", "f16", "f32", "int8"),
            "block_size": (8, 16, 32, 64),
            "activations": ("auto", "int8", "bf16"),
            "isa": (None, "scalar", "avx2", "avx512vnni", "amx"),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                known = ", ".join(str(a) for a in allowed if a is not None)
                raise ValueError(f"{name} must be one of {known}, not {value!r}")
        if not isinstance(self.batch_invariant, bool):
            raise ValueError(f"batch_invariant must be True or False, not {self.batch_invariant!r}")
        if not isinstance(self.prefix_caching, bool):
            raise ValueError(f"prefix_caching must be true or false, not {self.prefix_caching!r}")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_seqs {self.max_num_seqs} exceeds max_num_batched_tokens "
                f"{self.max_num_batched_tokens}: each running sequence takes a token of a step"
            )
