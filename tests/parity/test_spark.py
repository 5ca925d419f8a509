"""Spark-X2.5 against an independent numpy reference, on every kernel path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.parity import spark_reference
from tests.parity.driver import Driver, load, relative_error

# float32 against float64 over five layers.
TOLERANCE = 3e-5
TOKENS = np.random.default_rng(8).integers(0, 320, 60).tolist()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("spark")
    tensors = spark_reference.write_checkpoint(folder)
    return folder, spark_reference.logits(tensors, TOKENS)


@pytest.mark.parametrize("chunk", [96, 7, 1])
def test_logits(checkpoint: tuple[Path, np.ndarray], isa: str, chunk: int) -> None:
    folder, want = checkpoint
    got = Driver(load(folder, isa)).logits(TOKENS, chunk)
    assert relative_error(got, want) < TOLERANCE


def test_the_reference_sees_window_gate_and_partial_rope(tmp_path: Path) -> None:
    # What the test above could not notice would make it worthless: each mechanism of the
    # architecture must move the reference's logits.
    tensors = spark_reference.write_checkpoint(tmp_path)
    base = spark_reference.logits(tensors, TOKENS)
    original = dict(spark_reference.CONFIG)
    changes = {
        "sliding_window": 60,
        "rope_parameters": {
            kind: {**rope, "partial_rotary_factor": 0.5}
            for kind, rope in original["rope_parameters"].items()
        },
    }
    for name, value in changes.items():
        spark_reference.CONFIG[name] = value
        try:
            moved = relative_error(spark_reference.logits(tensors, TOKENS), base)
        finally:
            spark_reference.CONFIG[name] = original[name]
        assert moved > 100 * TOLERANCE, name
    silent = {k: v * 0 if "g_proj" in k else v for k, v in tensors.items()}
    assert relative_error(spark_reference.logits(silent, TOKENS), base) > 100 * TOLERANCE
