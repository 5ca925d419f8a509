"""Timing of bare steps: prefill and decode at a batch and a depth, as llama-bench does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean, stdev

import numpy as np

from edge_infer.engine.kv_plan import ring_tables
from edge_infer.engine.load import LoadedModel


@dataclass(frozen=True)
class BenchCase:
    """n_prompt tokens to prefill or n_gen tokens to decode, after n_depth tokens of KV.

    `batch` sequences run side by side; figures count the tokens of all.
    """

    n_prompt: int
    n_gen: int
    n_depth: int
    batch: int = 1

    @property
    def tokens(self) -> int:
        """Tokens that a repetition computes."""
        return (self.n_prompt + self.n_gen) * self.batch

    @property
    def positions(self) -> int:
        """The longest sequence."""
        return self.n_depth + self.n_prompt + self.n_gen


@dataclass(frozen=True)
class BenchResult:
    """Samples of one case, in nanoseconds."""

    case: BenchCase
    samples_ns: list[int] = field(default_factory=list)
    kernels: dict[str, int] = field(default_factory=dict)  # ops run by each kernel, all samples

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second of each sample."""
        return [self.case.tokens / ns * 1e9 for ns in self.samples_ns]

    @property
    def avg_ts(self) -> float:
        """Mean tokens per second."""
        return mean(self.samples_ts)

    @property
    def stddev_ts(self) -> float:
        """Standard deviation of tokens per second."""
        return stdev(self.samples_ts) if len(self.samples_ns) > 1 else 0.0


class Bench:
    """Drives the runner's native steps with made-up tokens; nothing is sampled."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._rng = np.random.default_rng(0)

    def run(
        self, case: BenchCase, repetitions: int, on_sample: Callable[[], None] | None = None
    ) -> BenchResult:
        """Warm up once, then time `repetitions` runs. Raises ValueError when it does not fit."""
        tables = self._tables(case)
        chunk = self._model.limits.max_tokens
        before = self._model.runner.kernel_calls()
        for sequence in range(case.batch):
            self._prefill(tables[sequence : sequence + 1], 0, case.n_depth, chunk)
        samples = []
        for repetition in range(repetitions + 1):
            started = time.perf_counter_ns()
            for sequence in range(case.batch):
                table = tables[sequence : sequence + 1]
                self._prefill(table, case.n_depth, case.n_prompt, chunk)
            warm_up = repetition == 0
            steps = min(case.n_gen, 4) if warm_up else case.n_gen
            for i in range(steps):
                self._decode(tables, case.n_depth + case.n_prompt + i)
            if not warm_up:
                samples.append(time.perf_counter_ns() - started)
            if on_sample is not None:
                on_sample()
        after = self._model.runner.kernel_calls()
        kernels = {k: n - before.get(k, 0) for k, n in after.items() if n > before.get(k, 0)}
        return BenchResult(case, samples, kernels)

    def _tables(self, case: BenchCase) -> np.ndarray:
        """Block tables of the batch: blocks in order, one sequence after the other."""
        plan = self._model.plan
        what = (
            f"depth {case.n_depth} + prompt {case.n_prompt} + generated {case.n_gen} at batch "
            f"{case.batch}"
        )
        if case.positions > plan.max_model_len:
            raise ValueError(
                f"{what} needs {case.positions} positions, the context holds {plan.max_model_len}"
            )
        try:
            width = -(-case.positions // self._model.options.block_size)
            return ring_tables(plan.kv_groups, case.batch, width)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from error

    def _prefill(self, table: np.ndarray, start: int, count: int, chunk: int) -> None:
        for begin in range(start, start + count, chunk):
            n = min(chunk, start + count - begin)
            self._step(np.arange(begin, begin + n), np.array([0, n]), table)

    def _decode(self, tables: np.ndarray, position: int) -> None:
        batch = len(tables)
        self._step(np.full(batch, position), np.arange(batch + 1), tables)

    def _step(self, positions: np.ndarray, query_start: np.ndarray, tables: np.ndarray) -> None:
        tokens = self._rng.integers(0, self._model.spec.vocab_size, len(positions))
        self._model.runner.raw_step(
            tokens.astype(np.int32),
            positions.astype(np.int32),
            query_start.astype(np.int32),
            tables,
            (query_start[1:] - 1).astype(np.int32),
        )
