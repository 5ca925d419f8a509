"""With batch_invariant a sequence's logits have the same bits whatever else a step computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.parity.driver import MAX_TOKENS, Driver, load, relative_error

from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.plan import QuantizeOptions

TinyModel = Callable[..., tuple[Path, Any]]

# Longer than a tile of keys, and no multiple of any kernel's step.
TOKENS = np.random.default_rng(23).integers(0, 320, 75).tolist()
PREFIX = 67
OTHERS = np.random.default_rng(29).integers(0, 320, (15, 20)).tolist()


@pytest.fixture(scope="module")
def folder(
    tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    """folder(model, form) -> a checkpoint, form a dense dtype or int4 or int8 groups of 32."""
    made: dict[tuple[str, str], Path] = {}

    def make(name: str, form: str) -> Path:
        if (name, form) not in made:
            packed = {"int4": QuantizeOptions(group_size=32, form="min")}
            if form in packed:
                target = tmp_path_factory.mktemp("packed") / name
                convert(tiny_model(name, "f32")[0], target, packed[form])
            else:
                target = tiny_model(name, form)[0]
            made[name, form] = target
        return made[name, form]

    return make


def decode_alone(driver: Driver, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits of every token, each computed in a step of its own."""
    return driver.logits(tokens, chunk=1)


def decode_beside(driver: Driver, others: int) -> NDArray[np.float32]:
    """Logits of the tokens after the prefix, decoded with other sequences in the step."""
    driver.step([(0, 0, TOKENS[:PREFIX])])
    for number in range(others):
        driver.step([(1 + number, 0, OTHERS[number][: 5 + number])])
    rows = []
    for i in range(len(TOKENS) - PREFIX):
        parts = [(0, PREFIX + i, TOKENS[PREFIX + i : PREFIX + i + 1])]
        parts += [(1 + n, 5 + n + i, [OTHERS[n][i]]) for n in range(others)]
        # Its place in the step changes from step to step.
        place = i % len(parts)
        parts[0], parts[place] = parts[place], parts[0]
        rows.append(driver.step(parts)[place])
    return np.concatenate(rows)


def check_all_ways(model: Any) -> None:
    """Compare every way to compute TOKENS with one token at a time, alone."""
    want = decode_alone(Driver(model), TOKENS)
    for chunk in (2, 3, 5, 8, 13, 16, 33, 64, MAX_TOKENS):
        got = Driver(model, seed=chunk).logits(TOKENS, chunk)
        assert np.array_equal(got, want), f"chunks of {chunk}"
    for others in (1, 2, 3, 4, 7, 8, 11, 15):
        got = decode_beside(Driver(model, seed=others), others)
        assert np.array_equal(got, want[PREFIX:]), f"decoded beside {others}"
    # A prefill chunk between a decode and other prefills.
    driver = Driver(model, seed=1)
    driver.step([(1, 0, OTHERS[0]), (0, 0, TOKENS[:31])])
    got = driver.step([(1, 20, [7]), (0, 31, TOKENS[31:]), (2, 0, OTHERS[1])])[1]
    assert np.array_equal(got, want[31:]), "prefilled beside others"


@pytest.mark.parametrize("activations", ["bf16", "int8"])
@pytest.mark.parametrize(("name", "kv_dtype"), [("llama", "bf16"), ("mistral-window", "int8")])
def test_packed_weights(
    folder: Callable[[str, str], Path], isa: str, name: str, kv_dtype: str, activations: str
) -> None:
    check_all_ways(
        load(
            folder(name, "int4"),
            isa,
            activations=activations,
            kv_dtype=kv_dtype,
            batch_invariant=True,
            max_model_len=96,
        )
    )


@pytest.mark.parametrize(
    ("name", "dtype", "kv_dtype"),
    [("qwen2-window", "bf16", "f32"), ("qwen3-wide-head", "f32", "f16"), ("qwen3", "f16", "bf16")],
)
def test_dense_weights(
    folder: Callable[[str, str], Path], isa: str, name: str, dtype: str, kv_dtype: str
) -> None:
    check_all_ways(
        load(folder(name, dtype), isa, kv_dtype=kv_dtype, batch_invariant=True, max_model_len=96)
    )


def test_the_threads_do_not_matter_either(folder: Callable[[str, str], Path], isa: str) -> None:
    path = folder("llama", "int4")
    first, second = (
        Driver(load(path, isa, batch_invariant=True, threads=n)).logits(TOKENS, 16) for n in (1, 2)
    )
    assert np.array_equal(first, second)


def test_it_is_the_same_model_as_without(folder: Callable[[str, str], Path], isa: str) -> None:
    path = folder("llama", "int4")
    with_it = Driver(load(path, isa, activations="bf16", batch_invariant=True)).logits(TOKENS, 1)
    without = Driver(load(path, isa, activations="bf16")).logits(TOKENS, 1)
    assert relative_error(with_it, without) < 0.005
