"""Draft tokens from the sequence itself: what followed when its last tokens came before.

Nothing is lost by a wrong draft but the time of computing it. Texts that copy from their prompt
(code that is edited, summaries, answers from a document) repeat long runs of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_infer.engine.sequence import Sequence

MATCH_LENGTH = 3  # tokens that must have come before, in this order
MAX_PAUSE = 32  # steps without a draft, after drafts that were of no use


class PromptLookup:
    """Proposes draft tokens for one sequence, fewer and rarer when they turn out wrong."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        # The position after the latest occurrence of these tokens; the last token is not in yet.
        self._after: dict[tuple[int, ...], int] = {}
        self._indexed = MATCH_LENGTH  # occurrences that end before this position are in
        self._length = max_tokens
        self._pause = 0
        self._next_pause = 1

    def propose(self, sequence: Sequence, limit: int) -> list[int]:
        """At most `limit` tokens that may come next; often none."""
        if self._pause:
            self._pause -= 1
            return []
        count = min(limit, self._length)
        start = self._find(sequence) if count > 0 else None
        if start is None:
            return []
        end = sequence.num_tokens
        source = sequence.tokens(start, min(start + count, end))
        # A run that reaches the end goes on with itself: its period repeats.
        return [source[i % len(source)] for i in range(count)]

    def accepted(self, num_proposed: int, num_accepted: int) -> None:
        """How many of the tokens proposed last were sampled."""
        if num_accepted == num_proposed:
            self._length = min(2 * self._length, self._max_tokens)
        else:
            self._length = max(1, num_accepted)
        if num_accepted:
            self._next_pause = 1
        else:
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause, MAX_PAUSE)

    def _find(self, sequence: Sequence) -> int | None:
        end = sequence.num_tokens
        if end <= MATCH_LENGTH:
            return None
        first = self._indexed - MATCH_LENGTH
        tokens = sequence.tokens(first, end)
        for position in range(self._indexed, end):
            offset = position - first
            self._after[tuple(tokens[offset - MATCH_LENGTH : offset])] = position
        self._indexed = end
        return self._after.get(tuple(tokens[-MATCH_LENGTH:]))
