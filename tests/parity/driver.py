"""Runs a loaded model step by step and returns the logits of every token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_infer.engine.kv_plan import ring_tables
from edge_infer.engine.load import LoadedModel, load_model
from edge_infer.engine.options import EngineOptions

MAX_TOKENS = 96


def load(path: Path, isa: str, **settings: Any) -> LoadedModel:
    """A model that gives logits for up to MAX_TOKENS tokens of a step."""
    defaults: dict[str, Any] = {
        "kv_dtype": "f32",
        "max_model_len": 128,
        "max_num_seqs": MAX_TOKENS,
        "max_num_batched_tokens": MAX_TOKENS,
    }
    return load_model(path, EngineOptions(isa=isa, **{**defaults, **settings}))


class Driver:
    """Sequences of a model with blocks handed out in a scrambled order."""

    def __init__(self, model: LoadedModel, seed: int = 0) -> None:
        self.model = model
        width = -(-model.plan.max_model_len // model.options.block_size)
        groups = model.plan.kv_groups
        self._tables = ring_tables(groups, model.options.max_num_seqs, width)
        random = np.random.default_rng(seed)
        for g, group in enumerate(groups):
            order = random.permutation(group.num_blocks).astype(np.int32)
            self._tables[:, g] = order[self._tables[:, g]]

    def step(self, parts: Sequence[tuple[int, int, Sequence[int]]]) -> list[NDArray[np.float32]]:
        """Compute (sequence number, first position, tokens) parts in one step.

        Returns float32 [tokens, vocab] for each part, copied.
        """
        counts = [len(tokens) for _, _, tokens in parts]
        query_start = np.cumsum([0, *counts]).astype(np.int32)
        tokens = np.concatenate([np.asarray(t, np.int32) for _, _, t in parts])
        positions = np.concatenate([np.arange(p, p + len(t), dtype=np.int32) for _, p, t in parts])
        tables = self._tables[[n for n, _, _ in parts]]
        rows = np.arange(len(tokens), dtype=np.int32)
        logits = self.model.runner.raw_step(tokens, positions, query_start, tables, rows)
        return [logits[a:b].copy() for a, b in pairwise(query_start)]

    def logits(self, tokens: Sequence[int], chunk: int = MAX_TOKENS) -> NDArray[np.float32]:
        """Logits of one sequence computed in chunks, float32 [tokens, vocab]."""
        parts = [
            self.step([(0, begin, tokens[begin : begin + chunk])])[0]
            for begin in range(0, len(tokens), chunk)
        ]
        return np.concatenate(parts)


def relative_error(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Largest error of a row, relative to the row's norm."""
    error = np.linalg.norm(got.astype(np.float64) - want, axis=-1)
    return float((error / np.linalg.norm(want.astype(np.float64), axis=-1)).max())
