"""Turns scheduled sequences into one native step."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from edge_infer import _native
from edge_infer.engine.scheduler import Scheduled
from edge_infer.program.spec import StepLimits

Ints = NDArray[np.int32]


class Runner:
    """Owns the native program and the arrays its input is written into."""

    def __init__(
        self, program: _native.Program, limits: StepLimits, block_size: int, num_groups: int = 1
    ) -> None:
        self._program = program
        self._tokens = np.zeros(limits.max_tokens, np.int32)
        self._positions = np.zeros(limits.max_tokens, np.int32)
        self._query_start = np.zeros(limits.max_sequences + 1, np.int32)
        self._logits_rows = np.zeros(limits.max_logits, np.int32)
        width = -(-limits.max_positions // block_size)
        self._block_tables = np.zeros((limits.max_sequences, num_groups, width), np.int32)

    def step(self, scheduled: Seq[Scheduled]) -> NDArray[np.float32]:
        """Compute the scheduled tokens and drafts.

        Returns float32 [rows, vocab_size], valid until the next step. In the order of
        `scheduled`, each sequence whose last token was computed has a row for it and one for
        each draft token.
        """
        return self.raw_step(*self._fill(scheduled))

    def hidden_step(self, scheduled: Seq[Scheduled]) -> NDArray[np.float32]:
        """Compute the scheduled tokens but not their logits.

        Returns float32 [sequences whose last token was computed, hidden_size], what the
        output head would read, final norm included; valid until the next step.
        """
        hidden: NDArray[np.float32] = self._program.hidden_step(*self._fill(scheduled))
        return hidden

    def _fill(self, scheduled: Seq[Scheduled]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The native step's input: tokens, positions, query_start, block_tables, logits_rows."""
        start = 0
        rows = 0
        for i, item in enumerate(scheduled):
            sequence, count = item.sequence, item.num_tokens
            end = start + count + len(item.draft)
            first = sequence.num_computed
            self._tokens[start : start + count] = sequence.pending(count)
            self._tokens[start + count : end] = item.draft
            self._positions[start:end] = np.arange(first, first + end - start, dtype=np.int32)
            for group, table in enumerate(sequence.block_tables):
                self._block_tables[i, group, : len(table)] = table
            if count == sequence.num_pending:
                for row in range(start + count - 1, end):
                    self._logits_rows[rows] = row
                    rows += 1
            self._query_start[i + 1] = end
            start = end
        n = len(scheduled)
        return (
            self._tokens[:start],
            self._positions[:start],
            self._query_start[: n + 1],
            self._block_tables[:n],
            self._logits_rows[:rows],
        )

    def raw_step(
        self,
        tokens: Ints,
        positions: Ints,
        query_start: Ints,
        block_tables: Ints,
        logits_rows: Ints,
    ) -> NDArray[np.float32]:
        """One native step over int32 arrays (StepInput in native/program/program.h)."""
        logits: NDArray[np.float32] = self._program.step(
            tokens, positions, query_start, block_tables, logits_rows
        )
        return logits

    def kernel_calls(self) -> dict[str, int]:
        """How many ops each kernel has run so far."""
        return dict(self._program.kernel_calls())

    @property
    def memory_bytes(self) -> int:
        """Anonymous bytes of the program: arena, per-thread areas, vectors."""
        return int(self._program.memory_bytes)
