"""The heart of the engine: one step after another over everyone's sequences.

It takes no locks. Whoever owns it, a lock or a thread of its own, makes every call.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from edge_infer.engine.admission import max_draft_tokens
from edge_infer.engine.errors import EngineError
from edge_infer.engine.kv_blocks import BlockPool
from edge_infer.engine.kv_groups import KvGroups
from edge_infer.engine.load import LoadedModel
from edge_infer.engine.sampler import SamplerError
from edge_infer.engine.scheduler import Scheduled, Scheduler
from edge_infer.engine.sequence import Sequence
from edge_infer.grammar import GrammarError


class EngineCore:
    """Schedules sequences, computes steps and samples."""

    def __init__(self, model: LoadedModel) -> None:
        self._runner = model.runner
        self._kv_groups = model.plan.kv_groups
        options = model.options
        self.scheduler = Scheduler(
            KvGroups(
                BlockPool(group.num_blocks, options.block_size, group.window)
                for group in self._kv_groups
            ),
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            prefix_caching=options.prefix_caching,
            max_draft_tokens=max_draft_tokens(options),
        )
        self.num_failed_steps = 0  # in a row
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0  # of the drafts

    def has_work(self) -> bool:
        """Whether a sequence waits or runs."""
        return self.scheduler.has_work()

    @property
    def kv_used_bytes(self) -> int:
        """Bytes of the KV blocks that running sequences hold."""
        return sum(
            (pool.num_blocks - pool.num_free) * group.block_bytes
            for pool, group in zip(self.scheduler.blocks.pools, self._kv_groups, strict=True)
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.scheduler.add(sequence)

    def cancel(self, sequences: Seq[Sequence]) -> None:
        """End sequences that still wait or run and free their blocks."""
        for sequence in sequences:
            if sequence.finish_reason is None:
                sequence.finish_reason = "cancelled"
                self.scheduler.remove(sequence)

    def fail_all(self, error: Exception) -> list[Sequence]:
        """End everything with an error; returns what ended."""
        failed = [*self.scheduler.running, *self.scheduler.waiting]
        for sequence in failed:
            self._fail(sequence, error)
        return failed

    def step(self) -> list[Sequence]:
        """One step; returns the sequences that got a token or ended.

        A step that fails ends the sequences it computed, with an EngineError, and no others.
        """
        scheduled = self.scheduler.schedule()
        if not scheduled:
            raise EngineError("no sequence can be scheduled")
        # Prompts to embed need no logits; they are computed by themselves.
        texts = [item for item in scheduled if not item.sequence.wants_hidden]
        embeddings = [item for item in scheduled if item.sequence.wants_hidden]
        changed: list[Sequence] = []
        if texts:
            changed += self._compute(texts, self._runner.step, self._sample)
        if embeddings:
            changed += self._compute(embeddings, self._runner.hidden_step, _take_hidden)
        return changed

    def _compute(
        self,
        scheduled: Seq[Scheduled],
        step: Callable[[Seq[Scheduled]], NDArray[np.float32]],
        take: Callable[[Sequence, NDArray[np.float32]], None],
    ) -> list[Sequence]:
        try:
            rows = step(scheduled)
        except Exception as error:  # noqa: BLE001 - nobody may wait for this step forever
            failure = EngineError(f"a step failed: {error}")
            failure.__cause__ = error
            for item in scheduled:
                self._fail(item.sequence, failure)
            self.num_failed_steps += 1
            return [item.sequence for item in scheduled]
        self.num_failed_steps = 0
        try:
            return self._take(scheduled, rows, take)
        except BaseException:  # an interrupt: what got no token yet is sampled by the next step
            for item in scheduled:
                sequence = item.sequence
                if sequence.finish_reason is None:
                    if sequence.num_pending == 0:
                        sequence.num_computed -= 1
                    self.scheduler.computed(sequence)  # harmless where it was called
            raise

    def _take(
        self,
        scheduled: Seq[Scheduled],
        rows: NDArray[np.float32],
        take: Callable[[Sequence, NDArray[np.float32]], None],
    ) -> list[Sequence]:
        """Hand its row, and those of its draft, to every sequence computed to its end."""
        row = 0
        changed = []
        for item in scheduled:
            sequence = item.sequence
            sequence.num_computed += item.num_tokens
            if not sequence.output_token_ids:
                self.num_prompt_tokens += item.num_tokens
            if sequence.num_pending == 0:
                take(sequence, rows[row])
                if item.draft:
                    self._verify(item, rows[row + 1 :])
                row += 1 + len(item.draft)
                changed.append(sequence)
            self.scheduler.computed(sequence)
            if sequence.finish_reason is not None:
                self.scheduler.remove(sequence)
        return changed

    def _verify(self, item: Scheduled, rows: NDArray[np.float32]) -> None:
        """Sample on while the draft is what was sampled: the same tokens as one step at a time.

        The cache entries of the draft's other tokens are computed again over themselves.
        """
        sequence, num_accepted = item.sequence, 0
        for draft, logits in zip(item.draft, rows, strict=False):
            if sequence.finish_reason is not None or sequence.output_token_ids[-1] != draft:
                break
            num_accepted += 1
            sequence.num_computed += 1
            self._sample(sequence, logits)
        assert sequence.lookup is not None
        sequence.lookup.accepted(len(item.draft), num_accepted)
        self.num_drafts += 1
        self.num_draft_tokens += len(item.draft)
        self.num_accepted_tokens += num_accepted

    def _sample(self, sequence: Sequence, logits: NDArray[np.float32]) -> None:
        try:
            sequence.append(sequence.sampler.sample(logits))
            self.num_generated_tokens += 1
        except (SamplerError, GrammarError) as error:
            sequence.fail(error)
        except Exception as error:  # noqa: BLE001 - one request's fault is not the others'
            sequence.fail(EngineError(f"sampling failed: {error!r}"))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        sequence.fail(error)
        self.scheduler.remove(sequence)


def _take_hidden(sequence: Sequence, row: NDArray[np.float32]) -> None:
    sequence.hidden = row.copy()  # the next step overwrites it
    sequence.finish_reason = "stop"
