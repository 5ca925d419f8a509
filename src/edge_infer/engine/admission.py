"""Will it fit: the memory of an engine, decided from headers before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edge_infer.engine.errors import MemoryRefusal
from edge_infer.engine.kv_plan import KvDemand, KvGroupPlan
from edge_infer.engine.options import DEFAULT_MAX_MODEL_LEN, EngineOptions
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
    kv_groups: tuple[KvGroupPlan, ...]
    max_model_len: int
    available_bytes: int
    runtime_bytes: int = RUNTIME_BYTES

    @property
    def num_blocks(self) -> int:
        """Blocks of all groups."""
        return sum(group.num_blocks for group in self.kv_groups)

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of block_size tokens over all layers."""
        return sum(group.block_bytes for group in self.kv_groups)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache when every block is in use."""
        return sum(group.num_bytes for group in self.kv_groups)

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
    demand = KvDemand(spec.kv_layers, options)
    arena = spec.arena_bytes(step_limits(options, 1))
    runtime = max(0, RUNTIME_BYTES - resident_bytes)
    room = available_bytes - spec.weight_bytes - arena - runtime

    def kv_and_rope(positions: int) -> int:
        return demand.sequence_bytes(positions) + spec.rope_bytes(positions)

    kv_room = room if options.kv_budget_bytes is None else options.kv_budget_bytes

    def fits(positions: int) -> bool:
        return demand.sequence_bytes(positions) <= kv_room and kv_and_rope(positions) <= room

    longest = _longest_context(fits, checkpoint_positions, options.block_size)
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
    room -= spec.rope_bytes(context)
    if options.kv_budget_bytes is None:
        groups = demand.share_out(room, context, options.max_num_seqs)
    else:
        groups = demand.share_out(options.kv_budget_bytes, context, None)
        if sum(group.num_bytes for group in groups) > room:
            raise MemoryRefusal(
                f"kv_budget_bytes {options.kv_budget_bytes} does not fit: the KV cache can have "
                f"{room} of {available_bytes} available bytes",
                needed_bytes=options.kv_budget_bytes,
                available_bytes=room,
                longest_context=longest,
            )
    return MemoryPlan(
        weights_bytes=spec.weight_bytes,
        arena_bytes=arena,
        rope_bytes=spec.rope_bytes(context),
        kv_groups=groups,
        max_model_len=context,
        available_bytes=available_bytes,
    )


def _longest_context(fits: Callable[[int], bool], most: int, block_size: int) -> int:
    """The most positions, in whole blocks, that fit; `most` are enough."""
    low, high = 0, -(-most // block_size)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle * block_size):
            low = middle
        else:
            high = middle - 1
    return low * block_size


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
