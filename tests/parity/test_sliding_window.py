"""Layers with a sliding window keep few blocks, and compute what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.parity.driver import Driver, load, relative_error

from edge_infer import Engine, SamplingParams
from edge_infer.engine.kv_blocks import BlockPool

TinyModel = Callable[..., tuple[Path, Any]]

FAMILIES = ["mistral-window", "qwen2-window"]  # every layer; two layers of three
TOLERANCE = 2e-5  # as in test_architectures
LENGTH = 240  # ten windows and more
RANDOM = np.random.default_rng(17)
TEXT = RANDOM.integers(0, 320, LENGTH).tolist()
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def reference(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([tokens])).logits[0].float().numpy()
    return logits


def windowed(engine: Engine) -> list[BlockPool]:
    """The pools of the layers with a window."""
    pools = engine._core.scheduler.blocks.pools
    return [pool for pool in pools if pool.window]


def count_tokens(engine: Engine, held: list[int] | None = None) -> list[int]:
    """Counts the tokens of each native step from now on, and the blocks that windows hold."""
    counts: list[int] = []
    step = engine.model.runner.raw_step

    def counting(tokens: Any, *rest: Any) -> Any:
        counts.append(len(tokens))
        if held is not None:
            held.append(sum(pool.num_blocks - pool.num_free for pool in windowed(engine)))
        return step(tokens, *rest)

    engine.model.runner.raw_step = counting  # type: ignore[method-assign]
    return counts


@pytest.mark.parametrize("chunk", [1, 7, 16])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers_while_blocks_come_round(
    tiny_model: TinyModel, isa: str, name: str, chunk: int
) -> None:
    path, model = tiny_model(name)
    settings = {"max_num_seqs": 16, "max_num_batched_tokens": 16, "max_model_len": LENGTH}
    loaded = load(path, isa, **settings)
    assert [g.sequence_blocks for g in loaded.plan.kv_groups if g.window] == [4]
    got = Driver(loaded).logits(TEXT, chunk)
    assert relative_error(got, reference(model, TEXT)) < TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_equal_transformers(tiny_model: TinyModel, isa: str, name: str) -> None:
    """Chunked prefills beside decodes, blocks given up all the time, few blocks held."""
    path, model = tiny_model(name)
    options: dict[str, Any] = {"max_num_batched_tokens": 32, "kv_dtype": "f32", "isa": isa}
    prompts = [TEXT[:150], TEXT[60:200], TEXT[:100]]
    with Engine(path, max_model_len=LENGTH, max_num_seqs=3, **options) as engine:
        held: list[int] = []
        count_tokens(engine, held)
        answers = engine.generate(prompts, GREEDY)
        (pool,) = windowed(engine)
        assert pool.num_free == pool.num_blocks
        assert engine.num_free_blocks == engine.model.plan.num_blocks
    # A window of 24 and a step are at most 5 blocks of 16, contexts of 240 would be 15.
    assert max(held) <= 3 * 5
    assert held[-1] <= 3 * 3  # decodes
    for prompt, answer in zip(prompts, answers, strict=True):
        logits = reference(model, [*prompt, *answer.token_ids])[len(prompt) - 1 : -1]
        assert answer.token_ids == logits.argmax(-1).tolist()


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_preempted_and_drafted_tokens_are_the_same(
    tiny_model: TinyModel, name: str, drafts: int
) -> None:
    path, _ = tiny_model(name)
    prompts = [(TEXT[i : i + 9] * 9)[: 60 + i] for i in range(0, 30, 5)]
    options: dict[str, Any] = {
        "max_model_len": 128,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "batch_invariant": True,
    }
    with Engine(path, prefix_caching=False, **options) as engine:
        plain = [engine.generate([prompt], GREEDY)[0].token_ids for prompt in prompts]
        groups = engine.model.plan.kv_groups
        budget = sum(group.block_bytes * group.sequence_blocks for group in groups) * 3 // 2
    with Engine(path, kv_budget_bytes=budget, num_speculative_tokens=drafts, **options) as engine:
        together = [answer.token_ids for answer in engine.generate(prompts, GREEDY)]
        assert engine.num_preemptions > 0
        assert engine.num_free_blocks == engine.model.plan.num_blocks
    assert together == plain


@pytest.mark.parametrize("name", FAMILIES)
def test_prompts_that_differ_at_the_tail_compute_the_tail(tiny_model: TinyModel, name: str) -> None:
    """CASES 14: windowed layers must not force the whole prompt to be computed again."""
    path, _ = tiny_model(name)
    prompts = [TEXT[:160] + [7 + i] * 9 for i in range(4)]
    options: dict[str, Any] = {"max_model_len": 256, "batch_invariant": True}
    with Engine(path, prefix_caching=False, **options) as engine:
        plain = [engine.generate([prompt], GREEDY)[0].token_ids for prompt in prompts]
    with Engine(path, **options) as engine:
        counts = count_tokens(engine)
        cached = []
        for prompt, want in zip(prompts, plain, strict=True):
            del counts[:]
            answer = engine.generate([prompt], GREEDY)[0]
            assert answer.token_ids == want
            cached.append(len(prompt) - counts[0])
        # The next turn of the last conversation: 208 tokens were computed, 13 blocks of 16.
        del counts[:]
        engine.generate([[*prompts[-1], *plain[-1], 5, 6]], GREEDY)
        assert counts[0] == 211 - 208
    assert cached == [0, 160, 160, 160]


def test_a_cancelled_sequence_gives_back_its_blocks(tiny_model: TinyModel) -> None:
    path, _ = tiny_model("qwen2-window")
    with Engine(path, max_model_len=LENGTH, max_num_batched_tokens=32) as engine:
        for steps in (1, 3, 9):
            stream = engine.stream(TEXT[:150], GREEDY)
            for _ in range(steps):
                next(stream)
            stream.close()
            assert engine.num_free_blocks == engine.model.plan.num_blocks


def test_interrupted_steps_lose_nothing(tiny_model: TinyModel) -> None:
    path, _ = tiny_model("qwen2-window")
    options: dict[str, Any] = {"max_model_len": LENGTH, "max_num_batched_tokens": 16}
    with Engine(path, max_num_seqs=1, **options) as engine:
        alone = engine.generate([TEXT[:70]], GREEDY)[0].token_ids
        stream = engine.stream(TEXT[:70], GREEDY)
        sampler = stream._sequence.sampler
        sample, calls = sampler.sample, 0

        def often(logits: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 0:
                raise KeyboardInterrupt
            return sample(logits)

        sampler.sample = often  # type: ignore[method-assign]
        tokens: list[int] = []
        while len(tokens) < len(alone):
            try:
                tokens += next(stream).token_ids
            except KeyboardInterrupt:
                continue
        assert tokens == alone
        assert calls > len(alone)
        assert engine.num_free_blocks == engine.model.plan.num_blocks
