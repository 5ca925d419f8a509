"""What `auto` activations mean."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from edge_infer.engine.load import choose_activations
from edge_infer.engine.options import EngineOptions


@dataclass
class Entry:
    elements: int


@dataclass
class FakeCheckpoint:
    sizes: list[int]

    def entries(self) -> list[Entry]:
        return [Entry(size) for size in self.sizes]


@pytest.mark.parametrize(
    ("asked", "sizes", "chosen"),
    [
        ("auto", [100_000_000, 35_000_000], "bf16"),
        ("auto", [999_999_999], "bf16"),
        ("auto", [700_000_000, 300_000_000], "int8"),
        ("int8", [135_000_000], "int8"),
        ("bf16", [7_000_000_000], "bf16"),
    ],
)
def test_choose_activations(asked: str, sizes: list[int], chosen: str) -> None:
    options = EngineOptions(activations=asked)  # type: ignore[arg-type]
    assert choose_activations(FakeCheckpoint(sizes), options) == chosen  # type: ignore[arg-type]
