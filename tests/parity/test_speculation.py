"""With drafts from prompt lookup every token is the one that would have come without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_infer import Engine, SamplingParams

TinyModel = Callable[..., tuple[Path, Any]]

FEW = dict.fromkeys(range(20, 24), 60.0)  # texts of four tokens repeat themselves often
KINDS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 5, "logit_bias": FEW},
    "penalties": {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.3, "logit_bias": FEW},
    "logprobs": {"temperature": 1.2, "seed": 7, "logprobs": 2, "logit_bias": FEW},
    "stop": {"temperature": 1.0, "seed": 8, "stop_token_ids": [23], "logit_bias": FEW},
    "short": {"temperature": 1.0, "seed": 9, "max_tokens": 3, "logit_bias": FEW},
}


def prompts() -> list[list[int]]:
    random = np.random.default_rng(2)
    period = random.integers(20, 24, 7).tolist()
    return [period * 3, random.integers(20, 24, 33).tolist(), [21, 22], period * 6]


@pytest.mark.parametrize("family", ["llama", "qwen2-window"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_the_same(tiny_model: TinyModel, family: str, kind: str) -> None:
    path, _ = tiny_model(family)
    params = SamplingParams(**{"max_tokens": 60, "ignore_eos": True, **KINDS[kind]})
    options: dict[str, Any] = {"max_model_len": 160, "max_num_seqs": 3, "batch_invariant": True}
    with Engine(path, **options) as engine:
        plain = engine.generate(prompts(), params)
    with Engine(path, num_speculative_tokens=5, **options) as engine:
        drafted = engine.generate(prompts(), params)
        alone = [engine.generate([prompt], params)[0] for prompt in prompts()]
        proposed, accepted = engine.num_draft_tokens, engine.num_accepted_tokens
        assert engine.num_free_blocks == engine.model.plan.num_blocks
    for one, two, three in zip(plain, drafted, alone, strict=True):
        assert one.token_ids == two.token_ids == three.token_ids
        assert one.finish_reason == two.finish_reason == three.finish_reason
        assert one.logprobs == two.logprobs == three.logprobs
    assert proposed > accepted > 0 or kind in ("greedy", "stop", "short")


def test_drafts_save_steps(tiny_model: TinyModel) -> None:
    path, _ = tiny_model("llama")
    only = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logit_bias={25: 90.0})
    with Engine(path, num_speculative_tokens=7, max_model_len=128) as engine:
        steps = 0
        step = engine.model.runner.raw_step

        def counting(*arrays: Any) -> Any:
            nonlocal steps
            steps += 1
            return step(*arrays)

        engine.model.runner.raw_step = counting  # type: ignore[method-assign]
        (answer,) = engine.generate([[25] * 8], only)
    assert answer.token_ids == [25] * 64
    assert steps == 1 + 63 // 8 + 1  # a prefill, steps of eight tokens, and the rest


def test_with_few_blocks_and_preemption(tiny_model: TinyModel) -> None:
    path, _ = tiny_model("llama")
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=60, logit_bias=FEW)
    options: dict[str, Any] = {"max_model_len": 112, "max_num_seqs": 4, "batch_invariant": True}
    with Engine(path, **options) as engine:
        plain = [c.token_ids for c in engine.generate(prompts(), params)]
        budget = engine.model.plan.kv_block_bytes * 10
    with Engine(path, num_speculative_tokens=4, kv_budget_bytes=budget, **options) as engine:
        drafted = [c.token_ids for c in engine.generate(prompts(), params)]
        assert engine.num_preemptions > 0
    assert drafted == plain
