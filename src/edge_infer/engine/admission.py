"""Will it fit: the memory of an engine, decided from headers before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_infer import _native
from edge_infer.engine.errors import MemoryRefusal
from edge_infer.engine.options import DEFAULT_MAX_MODEL_LEN, EngineOptions
from edge_infer.program.builder import kv_type
from edge_infer.program.spec import ProgramSpec, StepLimits

# Interpreter, libraries and tokenizer, measured on the demo model, the run
# that converts its GGUF included.
RUNTIME_BYTES = 120 << 20
# Draft tokens of a step, each with logits: more of them than this cost more than they save.
MAX_DRAFT_TOKENS = 16
MIB = 1 << 20


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of each consumer, and the sizes that follow from them."""

    weights_bytes: int
    arena_bytes: int
    rope_bytes: int
    kv_block_bytes: int
    num_blocks: int
    max_model_len: int
    available_bytes: int
    runtime_bytes: int = RUNTIME_BYTES

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache when every block is in use."""
        return self.num_blocks * self.kv_block_bytes

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return (
            self.weights_bytes
            + self.arena_bytes
            + self.rope_bytes
            + self.kv_bytes
            + self.runtime_bytes
        )


def max_draft_tokens(options: EngineOptions) -> int:
    """Draft tokens of one step: with more sequences than a few, each gets fewer."""
    per_sequence = options.num_speculative_tokens
    return min(options.max_num_seqs * per_sequence, max(MAX_DRAFT_TOKENS, per_sequence))


def step_limits(options: EngineOptions, max_model_len: int) -> StepLimits:
    """What one step may hold under these options."""
    return StepLimits(
        max_tokens=options.max_num_batched_tokens,
        max_sequences=options.max_num_seqs,
        max_logits=options.max_num_seqs + max_draft_tokens(options),
        max_positions=max_model_len,
    )


def plan_memory(
    spec: ProgramSpec,
    options: EngineOptions,
    *,
    checkpoint_positions: int,
    available_bytes: int,
    resident_bytes: int = 0,
) -> MemoryPlan:
    """Size the context and the KV cache.

    `available_bytes` is what is left beside this process's `resident_bytes`, which are
    part of the runtime's share already.

    Raises MemoryRefusal, with the longest context that fits, when what was asked does not.
    """
    block_bytes = _native.KvCache.block_bytes(
        spec.kv_layers, options.block_size, kv_type(options.kv_dtype)
    )
    arena = spec.arena_bytes(step_limits(options, 1))
    runtime = max(0, RUNTIME_BYTES - resident_bytes)
    room = available_bytes - spec.weight_bytes - arena - runtime

    def kv_and_rope(positions: int) -> int:
        blocks = -(-positions // options.block_size)
        return blocks * block_bytes + spec.rope_bytes(positions)

    kv_room = room if options.kv_budget_bytes is None else options.kv_budget_bytes
    longest = _longest_context(kv_and_rope, room, kv_room, block_bytes, options.block_size)
    asked = options.max_model_len
    if asked is not None and asked > checkpoint_positions:
        raise ValueError(
            f"max_model_len {asked} exceeds the checkpoint's context of "
            f"{checkpoint_positions} tokens"
        )
    wanted = asked or min(checkpoint_positions, DEFAULT_MAX_MODEL_LEN)
    context = wanted if asked else min(wanted, longest)
    if context > longest or context < 1:
        parts = (
            f"{available_bytes / MIB:.0f} MiB available, weights {spec.weight_bytes / MIB:.0f}, "
            f"activations {arena / MIB:.0f}, runtime {runtime / MIB:.0f}"
        )
        if options.kv_budget_bytes is not None:
            parts += f", kv_budget {options.kv_budget_bytes / MIB:.0f}"
        context = context or wanted
        raise _refusal(context, longest, kv_and_rope(context), min(room, kv_room), parts)
    per_sequence = -(-context // options.block_size)
    room_blocks = (room - spec.rope_bytes(context)) // block_bytes
    if options.kv_budget_bytes is not None:
        num_blocks = options.kv_budget_bytes // block_bytes
        if num_blocks > room_blocks:
            raise MemoryRefusal(
                f"kv_budget_bytes {options.kv_budget_bytes} does not fit: the KV cache can have "
                f"{max(room_blocks, 0) * block_bytes} of {available_bytes} available bytes",
                needed_bytes=options.kv_budget_bytes,
                available_bytes=max(room_blocks, 0) * block_bytes,
                longest_context=longest,
            )
    else:
        num_blocks = min(options.max_num_seqs * per_sequence, room_blocks)
    return MemoryPlan(
        weights_bytes=spec.weight_bytes,
        arena_bytes=arena,
        rope_bytes=spec.rope_bytes(context),
        kv_block_bytes=block_bytes,
        num_blocks=num_blocks,
        max_model_len=context,
        available_bytes=available_bytes,
    )


def _longest_context(
    cost: Callable[[int], int], room: int, kv_room: int, block_bytes: int, block_size: int
) -> int:
    """The most positions, in whole blocks, whose KV and RoPE tables fit."""
    blocks = max(min(room, kv_room) // block_bytes, 0)
    while blocks and cost(blocks * block_size) > room:
        excess = cost(blocks * block_size) - room
        blocks -= max(1, excess // (block_bytes * 2))
    return max(blocks, 0) * block_size


def _refusal(context: int, longest: int, needed: int, room: int, plan: str) -> MemoryRefusal:
    nearest = (
        f"the longest context that fits is {longest} tokens (max_model_len={longest})"
        if longest
        else "not even one block of KV cache fits"
    )
    return MemoryRefusal(
        f"a context of {context} tokens needs {needed / MIB:.0f} MiB for its KV cache and RoPE "
        f"tables, {max(room, 0) / MIB:.0f} MiB are left ({plan}); {nearest}",
        needed_bytes=needed,
        available_bytes=max(room, 0),
        longest_context=longest or None,
    )
