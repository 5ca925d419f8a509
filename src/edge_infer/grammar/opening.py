"""Text before the constrained part: free, until it ends with a given string."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_infer.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Opening:
    """Which tokens the text before `after` may go on with.

    All but those that end the sequence, those without text, and those that complete `after` and
    run on with something the grammar cannot begin with.
    """

    def __init__(self, after: str, vocabulary: Vocabulary, start: LLMatcher) -> None:
        self.after = after.encode()
        special = set(vocabulary.special_token_ids)
        never = set(vocabulary.eos_token_ids)
        # how much of `after` must have been generated before -> tokens that overrun wrongly
        overruns: dict[int, set[int]] = {}
        last = self.after[-1:]
        for token_id, text in enumerate(vocabulary.token_bytes):
            if not text and token_id not in special:
                never.add(token_id)
            elif last in text[:-1]:
                for done, rest in _overruns(text, self.after):
                    if not _can_start(start, vocabulary.spell(rest)):
                        overruns.setdefault(done, set()).add(token_id)
        self._never = np.array(sorted(never), np.intp)
        self._overruns = {done: np.array(sorted(ids), np.intp) for done, ids in overruns.items()}

    def forbidden(self, tail: bytes) -> NDArray[np.intp]:
        """Tokens that may not follow a text that ends with `tail`."""
        here = [
            ids
            for done, ids in self._overruns.items()
            if tail.endswith(self.after[:done])  # true for every text when nothing must be done
        ]
        return np.concatenate([self._never, *here])


def _overruns(text: bytes, after: bytes) -> list[tuple[int, bytes]]:
    """How `text` can complete `after` and run on: (bytes of `after` before it, bytes behind)."""
    found = []
    for end in range(1, len(text)):
        inside = min(end, len(after))
        if text[end - inside : end] == after[len(after) - inside :]:
            found.append((len(after) - inside, text[end:]))
    return found


def _can_start(start: LLMatcher, token_ids: list[int] | None) -> bool:
    return token_ids is not None and start.validate_tokens(token_ids) == len(token_ids)
