"""4- and 8-bit checkpoints against transformers on the dequantized weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.parity.driver import Driver, load, relative_error

from edge_infer.checkpoint import dequantize, open_checkpoint
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.plan import QuantizeOptions

TinyModel = Callable[..., tuple[Path, Any]]
Quantized = tuple[Path, np.ndarray]
TOKENS = np.random.default_rng(17).integers(0, 320, 60).tolist()

# Rounding an input to bf16 costs 2^-9 relative at most, to int8 per group half a step of
# amax / 127: about 0.4% of a group of normal values. Three layers of four linears add up
# as independent errors: about 3.5 times one of them, and the last norm divides by less.
W4A16_LIMIT = 0.012
W4A8_LIMIT = 0.05


@pytest.fixture(scope="module")
def quantized(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, int, str], Quantized]:
    """quantized(name, group, form) -> (cpu_int4 folder, logits of its dequantized weights)."""
    made: dict[tuple[str, int, str], Quantized] = {}

    def make(name: str, group_size: int, form: str) -> Quantized:
        key = (name, group_size, form)
        if key not in made:
            source, model = tiny_model(name, "f32")
            folder = tmp_path_factory.mktemp("int4") / "-".join(map(str, key))
            convert(source, folder, QuantizeOptions(group_size=group_size, form=form))
            made[key] = folder, dequantized_logits(model, folder)
        return made[key]

    return make


def dequantized_logits(model: Any, folder: Path) -> np.ndarray:
    """The reference's logits with every packed weight replaced by what the file stores."""
    original = {k: v.clone() for k, v in model.state_dict().items()}
    state = dict(original)
    with open_checkpoint(folder) as checkpoint:
        packed = [name for name in checkpoint.modules if f"{name}.weight" in state]
        assert len(packed) > 20, "nothing was quantized"
        for name in packed:
            weight = dequantize(checkpoint.linear(name))
            assert np.abs(weight - original[f"{name}.weight"].numpy()).max() > 0
            state[f"{name}.weight"] = torch.from_numpy(weight)
    model.load_state_dict(state)
    try:
        with torch.no_grad():
            logits: np.ndarray = model(torch.tensor([TOKENS])).logits[0].numpy()
    finally:
        model.load_state_dict(original)
    return logits


@pytest.mark.parametrize("form", ["symmetric", "min"])
@pytest.mark.parametrize(("name", "group_size"), [("llama", 32), ("qwen2", 64), ("qwen3", 128)])
def test_activations_are_all_that_is_lost(
    quantized: Callable[[str, int, str], Quantized],
    isa: str,
    name: str,
    group_size: int,
    form: str,
) -> None:
    folder, want = quantized(name, group_size, form)
    w4a16 = relative_error(Driver(load(folder, isa, activations="bf16")).logits(TOKENS), want)
    w4a8 = relative_error(Driver(load(folder, isa, activations="int8")).logits(TOKENS), want)
    print(f"{name} g{group_size} {form} {isa}: W4A16 {w4a16:.4f}, W4A8 {w4a8:.4f}")
    assert 0 < w4a16 < W4A16_LIMIT
    assert w4a16 < w4a8 < W4A8_LIMIT


@pytest.mark.parametrize("activations", ["int8", "bf16"])
def test_prefill_and_decode_compute_the_same(
    quantized: Callable[[str, int, str], Quantized], isa: str, activations: str
) -> None:
    # One token at a time and all at once run different kernels over the same numbers: what
    # may differ is the order of float32 sums, which now and then moves a rounding to int8
    # or bf16 by one step.
    folder, _ = quantized("llama", 32, "min")
    model = load(folder, isa, activations=activations)
    whole = Driver(model).logits(TOKENS)
    for chunk in (1, 7, 20):
        error = relative_error(Driver(model, seed=chunk).logits(TOKENS, chunk), whole)
        assert error < (0.02 if activations == "int8" else 0.005)
