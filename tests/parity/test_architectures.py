"""Each architecture against transformers in float32, on every kernel path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.parity.conftest import MODELS
from tests.parity.driver import Driver, load, relative_error

# Both sides compute in float32 and differ in summation order only: an error of a row of
# logits, relative to its norm, of some hundred float32 roundings (6e-8) after three layers.
TOLERANCE = 2e-5

TinyModel = Callable[..., tuple[Path, Any]]
TOKENS = np.random.default_rng(7).integers(0, 320, 70).tolist()


def reference(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float().numpy()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "llama-dynamic-rope"])
def test_logits_equal_transformers(tiny_model: TinyModel, isa: str, name: str, dtype: str) -> None:
    path, model = tiny_model(name, dtype)
    got = Driver(load(path, isa)).logits(TOKENS)
    assert relative_error(got, reference(model, TOKENS)) < TOLERANCE


def test_dynamic_rope_follows_the_served_context(tiny_model: TinyModel, isa: str) -> None:
    # transformers rescales by each sequence's length; ours by max_model_len. They are the
    # same model when the sequence is as long as the context.
    path, model = tiny_model("llama-dynamic-rope")
    tokens = np.random.default_rng(3).integers(0, 320, 96).tolist()
    got = Driver(load(path, isa, max_model_len=96)).logits(tokens)
    assert relative_error(got, reference(model, tokens)) < TOLERANCE


@pytest.mark.parametrize("chunk", [1, 5, 16, 33])
@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen3"])
def test_any_chunking_gives_the_same_logits(
    tiny_model: TinyModel, isa: str, name: str, chunk: int
) -> None:
    path, _ = tiny_model(name)
    model = load(path, isa)
    whole = Driver(model).logits(TOKENS)
    assert relative_error(Driver(model, seed=1).logits(TOKENS, chunk), whole) < TOLERANCE


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen3"])
def test_a_mixed_batch_equals_each_alone(tiny_model: TinyModel, isa: str, name: str) -> None:
    path, _ = tiny_model(name)
    model = load(path, isa)
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, 320, n).tolist() for n in (1, 40, 17, 2, 25)]
    alone = [Driver(model, seed=2).logits(p) for p in prompts]
    driver = Driver(model, seed=3)
    # Sequences 0 to 2 are prefilled but for their last token; then those three decode in
    # one step with the prefills of the other two.
    for number in range(3):
        if len(prompts[number]) > 1:
            driver.step([(number, 0, prompts[number][:-1])])
    parts = [(n, len(prompts[n]) - 1, prompts[n][-1:]) for n in range(3)]
    parts += [(n, 0, prompts[n]) for n in (3, 4)]
    mixed = driver.step(parts)
    for n, logits in enumerate(mixed):
        want = alone[n][-1:] if n < 3 else alone[n]
        assert relative_error(logits, want) < TOLERANCE, f"sequence {n}"


@pytest.mark.parametrize(
    ("kv_dtype", "tolerance"), [("f16", 2e-3), ("bf16", 1.5e-2), ("int8", 3e-2)]
)
def test_smaller_kv_types_stay_close(
    tiny_model: TinyModel, isa: str, kv_dtype: str, tolerance: float
) -> None:
    path, _ = tiny_model("qwen3")
    exact = Driver(load(path, isa)).logits(TOKENS)
    error = relative_error(Driver(load(path, isa, kv_dtype=kv_dtype)).logits(TOKENS), exact)
    assert 0 < error < tolerance
