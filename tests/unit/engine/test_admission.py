"""Sizing of the context and the KV cache from the bytes at hand (CASES 3 and 4 of the peers)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from edge_infer.engine.admission import RUNTIME_BYTES, MemoryPlan, plan_memory
from edge_infer.engine.errors import MemoryRefusal
from edge_infer.engine.options import EngineOptions
from edge_infer.program.kv_layers import KvLayer
from edge_infer.program.spec import StepLimits

MIB = 1 << 20
# 28 layers of 8 heads of 128, bf16: 1.75 MiB for a block of 16 tokens.
BLOCK_BYTES = 28 * 2 * 8 * 128 * 2 * 16


@dataclass
class FakeSpec:
    """A model of 1,000 MiB whose RoPE tables take 512 bytes a position."""

    weight_bytes: int = 1000 * MIB
    kv_layers: list[KvLayer] = field(default_factory=lambda: [KvLayer(8, 128)] * 28)

    def arena_bytes(self, limits: StepLimits) -> int:
        return limits.max_tokens * 1024

    def rope_bytes(self, positions: int) -> int:
        return positions * 512


def plan(available: int, *, spec: FakeSpec | None = None, **settings: object) -> MemoryPlan:
    return plan_memory(
        spec or FakeSpec(),  # type: ignore[arg-type]
        EngineOptions(**settings),  # type: ignore[arg-type]
        checkpoint_positions=40960,
        available_bytes=available,
    )


def test_a_large_machine_gets_the_default_context_for_every_sequence() -> None:
    p = plan(64 << 30)
    assert p.kv_block_bytes == BLOCK_BYTES
    assert p.max_model_len == 8192
    assert p.num_blocks == 8 * 512


def test_a_small_machine_gets_the_longest_context_that_fits() -> None:
    available = 1000 * MIB + RUNTIME_BYTES + MIB + 200 * MIB
    p = plan(available, max_num_seqs=1)
    assert p.max_model_len == p.num_blocks * 16
    assert p.total_bytes <= available
    assert p.total_bytes + BLOCK_BYTES > available - 16 * 512


def test_an_explicit_context_that_does_not_fit_is_refused_with_the_longest_that_does() -> None:
    available = 1000 * MIB + RUNTIME_BYTES + MIB + 200 * MIB
    with pytest.raises(MemoryRefusal, match="40960 tokens needs 4500 MiB") as refused:
        plan(available, max_model_len=40960)
    longest = refused.value.longest_context
    assert longest is not None
    assert f"max_model_len={longest}" in str(refused.value)
    assert plan(available, max_model_len=longest, max_num_seqs=1).max_model_len == longest
    with pytest.raises(MemoryRefusal):
        plan(available, max_model_len=longest + 16, max_num_seqs=1)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(MemoryRefusal, match="not even one block"):
        plan(900 * MIB)


def test_a_kv_budget_is_honoured_to_one_block() -> None:
    p = plan(64 << 30, kv_budget_bytes=300 * MIB, max_model_len=2048)
    assert 300 * MIB - BLOCK_BYTES < p.kv_bytes <= 300 * MIB
    with pytest.raises(MemoryRefusal, match="kv_budget"):
        plan(64 << 30, kv_budget_bytes=100 * MIB, max_model_len=2048)
    with pytest.raises(MemoryRefusal, match="kv_budget_bytes"):
        plan(2 << 30, kv_budget_bytes=8 << 30, max_model_len=2048)


def test_windowed_layers_leave_room_for_a_longer_context() -> None:
    available = 1000 * MIB + RUNTIME_BYTES + MIB + 200 * MIB
    mixed = FakeSpec(kv_layers=[KvLayer(8, 128, 512 if i % 4 else 0) for i in range(28)])
    longest = plan(available, max_num_seqs=1).max_model_len
    p = plan(available, spec=mixed, max_num_seqs=1)
    assert longest < 2000
    assert p.max_model_len > 2 * longest
    full, sliding = p.kv_groups
    assert (full.window, len(full.layers)) == (0, 7)
    assert (sliding.window, len(sliding.layers)) == (512, 21)
    # 511 positions that a step's first token sees and 512 of its own, begun inside a block.
    assert sliding.sequence_blocks == 65
    assert full.sequence_blocks == -(-p.max_model_len // 16)
    assert available - BLOCK_BYTES < p.total_bytes <= available
    assert p.kv_bytes == sum(group.num_blocks * group.block_bytes for group in p.kv_groups)


def test_a_kv_budget_is_shared_by_groups() -> None:
    mixed = FakeSpec(kv_layers=[KvLayer(8, 128, 512 if i % 4 else 0) for i in range(28)])
    p = plan(64 << 30, spec=mixed, kv_budget_bytes=900 * MIB, max_model_len=4096)
    assert 900 * MIB - BLOCK_BYTES < p.kv_bytes <= 900 * MIB
    full, sliding = p.kv_groups
    assert full.num_blocks / full.sequence_blocks == pytest.approx(
        sliding.num_blocks / sliding.sequence_blocks, rel=0.02
    )


def test_a_context_beyond_the_checkpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="40961 exceeds the checkpoint's context of 40960"):
        plan(64 << 30, max_model_len=40961)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 0}, "max_model_len must be an integer of 1 to"),
        ({"kv_dtype": "fp8"}, "kv_dtype must be one of bf16, f16, f32, int8, not 'fp8'"),
        ({"block_size": 12}, "block_size must be one of 8, 16, 32, 64"),
        ({"max_num_seqs": 600}, "max_num_seqs 600 exceeds max_num_batched_tokens 512"),
        ({"threads": True}, "threads must be an integer"),
        ({"isa": "sse9"}, "isa must be one of scalar"),
        ({"batch_invariant": 1}, "batch_invariant must be True or False, not 1"),
    ],
)
def test_bad_options_name_field_value_and_limit(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineOptions(**settings)  # type: ignore[arg-type]
