"""Hidden states against transformers, and steps that want several rows of a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.parity.driver import MAX_TOKENS, Driver, load, relative_error

from edge_infer import _native
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.plan import QuantizeOptions
from edge_infer.engine.runner import Runner
from edge_infer.engine.scheduler import Scheduled
from edge_infer.program.spec import StepLimits

TinyModel = Callable[..., tuple[Path, Any]]
PROMPTS = [np.random.default_rng(n).integers(0, 320, n).tolist() for n in (30, 1, 9)]
# As in test_architectures: float32 sums in another order, three layers deep.
TOLERANCE = 2e-5


@dataclass
class Pending:
    """What the runner reads of a sequence: tokens to compute, none computed before."""

    tokens: list[int]
    block_tables: list[list[int]]
    num_computed: int = 0

    @property
    def num_pending(self) -> int:
        return len(self.tokens)

    def pending(self, count: int) -> list[int]:
        return self.tokens[:count]


def scheduled(prompts: list[list[int]], count: int | None = None) -> list[Scheduled]:
    """The prompts in blocks 0, 1, ..., up to `count` tokens of each."""
    items = []
    for i, tokens in enumerate(prompts):
        sequence = cast(Any, Pending(tokens, [[2 * i, 2 * i + 1]]))
        items.append(Scheduled(sequence, len(tokens) if count is None else count))
    return items


def reference(model: Any, tokens: list[int]) -> np.ndarray:
    """What the output head reads at the last token."""
    with torch.no_grad():
        hidden: np.ndarray = model.model(torch.tensor([tokens])).last_hidden_state[0, -1].numpy()
    return hidden


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3"])
def test_hidden_states_equal_transformers(tiny_model: TinyModel, isa: str, name: str) -> None:
    path, model = tiny_model(name)
    runner = load(path, isa).runner
    want = np.stack([reference(model, p) for p in PROMPTS])
    assert relative_error(runner.hidden_step(scheduled(PROMPTS)), want) < TOLERANCE
    # One row is prepared by every thread for itself.
    for prompt, row in zip(PROMPTS, want, strict=True):
        got = runner.hidden_step(scheduled([prompt]))
        assert got.shape == (1, row.size)
        assert relative_error(got, row[None]) < TOLERANCE


def test_a_chunk_before_the_last_has_no_row(tiny_model: TinyModel, isa: str) -> None:
    path, _ = tiny_model("llama")
    assert load(path, isa).runner.hidden_step(scheduled(PROMPTS[:1], 8)).shape == (0, 128)


@pytest.mark.parametrize("activations", ["int8", "bf16"])
def test_a_packed_head_reads_the_same_state(
    tiny_model: TinyModel, tmp_path: Path, isa: str, activations: str
) -> None:
    source, model = tiny_model("llama")
    convert(source, tmp_path / "int4", QuantizeOptions(group_size=32))
    runner = load(tmp_path / "int4", isa, activations=activations).runner
    hidden = runner.hidden_step(scheduled(PROMPTS)).copy()
    logits = runner.step(scheduled(PROMPTS))
    assert hidden.shape == (3, 128)
    # The head has 4 or 8 bits here, which is what the logits may differ by.
    head = model.lm_head.weight.detach().numpy()
    assert relative_error(logits, hidden @ head.T) < 0.15


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_step_may_want_several_rows_of_each_sequence(
    tiny_model: TinyModel, isa: str, batch_invariant: bool
) -> None:
    path, _ = tiny_model("qwen3")
    model = load(path, isa, batch_invariant=batch_invariant)
    want = [Driver(model, seed=1).logits(p) for p in (PROMPTS[0], PROMPTS[2])]
    limits = StepLimits(max_tokens=MAX_TOKENS, max_sequences=2, max_logits=10, max_positions=128)
    pool = _native.ThreadPool(model.threads.threads, model.threads.cpus)
    program = model.spec.instantiate(pool, model.kv, isa, limits, batch_invariant=batch_invariant)
    runner = Runner(program, limits, model.options.block_size)
    # The last 6 tokens of one sequence and 4 of the other, as if drafted, not in order.
    rows = [29, 24, 25, 26, 27, 28, 35, 36, 37, 38]
    tokens = np.array(PROMPTS[0] + PROMPTS[2], np.int32)
    positions = np.array([*range(30), *range(9)], np.int32)
    starts = np.array([0, 30, 39], np.int32)
    tables = np.array([[[3, 1]], [[2, 0]]], np.int32)
    got = runner.raw_step(tokens, positions, starts, tables, np.array(rows, np.int32))
    expected = np.concatenate(want)[rows]
    assert relative_error(got, expected) < TOLERANCE
    if batch_invariant:
        assert np.array_equal(got, expected)
    with pytest.raises(ValueError, match="the number of logits rows is 11, the limits are 0 to 10"):
        runner.raw_step(tokens, positions, starts, tables, np.arange(11, dtype=np.int32))
