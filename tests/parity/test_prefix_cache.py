"""Answers with the prefix cache are those without it, and shared tokens are computed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_infer import Engine, SamplingParams

TinyModel = Callable[..., tuple[Path, Any]]

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def count_tokens(engine: Engine) -> list[int]:
    """Counts the tokens of each native step from now on."""
    counts: list[int] = []
    step = engine.model.runner.raw_step

    def counting(tokens: Any, *rest: Any) -> Any:
        counts.append(len(tokens))
        return step(tokens, *rest)

    engine.model.runner.raw_step = counting  # type: ignore[method-assign]
    return counts


def prompts(count: int, shared: int, tail: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    prefix = random.integers(5, 60, shared).tolist()
    return [prefix + random.integers(5, 60, tail).tolist() for _ in range(count)]


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2-window"])
def test_answers_are_the_same_with_and_without(tiny_model: TinyModel, family: str) -> None:
    path, _ = tiny_model(family)
    texts = prompts(6, shared=50, tail=9)
    options = {"max_model_len": 128, "max_num_seqs": 3, "batch_invariant": True}
    with Engine(path, prefix_caching=False, **options) as engine:
        plain = [engine.generate([p], PARAMS)[0].token_ids for p in texts]
    with Engine(path, **options) as engine:
        counts = count_tokens(engine)
        together = [c.token_ids for c in engine.generate(texts, PARAMS)]
        first = sum(counts)
        again = [engine.generate([p], PARAMS)[0].token_ids for p in texts]
        assert engine.num_free_blocks == engine.model.plan.num_blocks
    assert together == plain
    assert again == plain
    # The prefix's three full blocks once, and for each prompt the rest and its output.
    assert first == 48 + 6 * (2 + 9) + 6 * (PARAMS.max_tokens or 0) - 6
    # The second time every full block of a prompt is there: 59 tokens have three of 16.
    assert sum(counts) - first == first - 48


def test_a_conversation_goes_on_where_it_was(tiny_model: TinyModel) -> None:
    path, _ = tiny_model("qwen3")
    with Engine(path, max_model_len=256) as engine:
        prompt = prompts(1, shared=40, tail=0)[0]
        answer = engine.generate([prompt], PARAMS)[0]
        counts = count_tokens(engine)
        engine.generate([[*prompt, *answer.token_ids, 7, 8]], PARAMS)
        # 51 tokens were computed, three full blocks of them are kept; 54 - 48 are new.
        assert counts[0] == 6


def test_a_step_that_fails_keeps_nothing(tiny_model: TinyModel) -> None:
    path, _ = tiny_model("qwen3")
    with Engine(path, max_model_len=128) as engine:
        step = engine.model.runner.raw_step
        prompt = prompts(1, shared=40, tail=0)[0]

        def failing(*_: Any) -> Any:
            raise RuntimeError("scripted")

        engine.model.runner.raw_step = failing  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="scripted"):
            engine.generate([prompt], PARAMS)
        engine.model.runner.raw_step = step  # type: ignore[method-assign]
        counts = count_tokens(engine)
        engine.generate([prompt], PARAMS)
        assert counts[0] == 40
