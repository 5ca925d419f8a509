"""The tokens one sequence may go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_infer.grammar.errors import GrammarError
from edge_infer.grammar.faults import reworded
from edge_infer.grammar.opening import Opening
from edge_infer.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

Floats = NDArray[np.float32]


class Matcher:
    """Follows one sequence through a grammar; independent of every other one of that grammar.

    For each token: `mask` its logits, draw, `accept` what was drawn. Nothing but an end-of-sequence
    token is allowed once the text is complete and cannot go on; one is allowed beside others when
    the text is complete and may go on.
    """

    def __init__(
        self, vocabulary: Vocabulary, state: LLMatcher, opening: Opening | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._state = state
        self._opening = opening
        self._tail = b""  # the last bytes before the grammar applies
        self._eos = np.array(vocabulary.eos_token_ids, np.intp)
        self._ended = False

    @property
    def is_terminated(self) -> bool:
        """Whether the text is complete and only an end-of-sequence token can follow."""
        if self._ended:
            return True
        return self._opening is None and self._state.is_stopped() and not self._state.is_error()

    def mask(self, logits: Floats) -> None:
        """Set the logits [vocab_size] of tokens that are not allowed to -inf, in place.

        Raises GrammarError when following the grammar exceeds the limits on its work.
        """
        if logits.shape != (self._vocabulary.size,):
            raise ValueError(f"logits are {logits.shape}; ({self._vocabulary.size},) is expected")
        if self._opening is not None:
            logits[self._opening.forbidden(self._tail)] = -np.inf
        elif self.is_terminated:
            ends = logits[self._eos]
            logits.fill(-np.inf)
            logits[self._eos] = ends
        else:
            bits = np.frombuffer(self._state.compute_bitmask(), np.uint8)
            self._raise_if_failed()
            allowed = np.unpackbits(bits, count=self._vocabulary.size, bitorder="little")
            np.copyto(logits, np.float32(-np.inf), where=allowed == 0)

    def accept(self, token_id: int) -> None:
        """Go on with `token_id`. Raises GrammarError for a token that is not allowed."""
        if self._opening is not None:
            self._accept_before(self._opening, token_id)
        elif self._ended or token_id in self._vocabulary.eos_token_ids:
            if not self._ended and not self._state.is_accepting():
                raise self._refusal(token_id)
            self._ended = True
        elif self._state.is_stopped() or not self._may_follow(token_id):
            self._raise_if_failed()
            raise self._refusal(token_id)
        else:
            self._state.consume_token(token_id)
            self._raise_if_failed()

    def _accept_before(self, opening: Opening, token_id: int) -> None:
        text = self._tail + self._vocabulary.token_bytes[token_id]
        end = text.find(opening.after)
        if end < 0:
            self._tail = text[-len(opening.after) :]
            return
        self._opening = None
        # the token may reach into the constrained text
        first = self._vocabulary.spell(text[end + len(opening.after) :])
        if first is None or not self._state.consume_tokens(first):
            raise self._refusal(token_id)

    def _may_follow(self, token_id: int) -> bool:
        known = 0 <= token_id < self._vocabulary.size
        return known and self._state.validate_tokens([token_id]) == 1

    def _raise_if_failed(self) -> None:
        if self._state.is_error():
            fault = reworded(self._state.get_error())
            raise GrammarError(f"the grammar cannot be followed further: {fault}")

    def _refusal(self, token_id: int) -> GrammarError:
        known = 0 <= token_id < self._vocabulary.size
        text = self._vocabulary.token_bytes[token_id] if known else b""
        return GrammarError(f"token {token_id} ({text!r}) is not allowed by the grammar here")
