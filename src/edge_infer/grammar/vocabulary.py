"""The vocabulary as llguidance wants it: the bytes of every token, and which tokens end a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_infer.grammar.errors import GrammarError
from edge_infer.text import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_MARK = "\x02"  # a token of its own in every vocabulary that has it


class Vocabulary:
    """`vocab_size` tokens of a model, of which those the tokenizer does not know are never allowed.

    token_bytes: what each token adds to the text; for a special token the way it is spelled.
    eos_token_ids: tokens that end a text, ascending; none beyond the model's vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        if not tokenizer.decodes_by_bytes:
            raise GrammarError(
                "structured output needs a tokenizer whose tokens stand for bytes (byte-level or "
                "byte-fallback BPE); the text of this one's tokens depends on their neighbours"
            )
        self.size = vocab_size
        self.token_bytes = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.eos_token_ids = sorted(t for t in tokenizer.eos_token_ids if t < vocab_size)
        if not self.eos_token_ids:
            raise GrammarError(
                "structured output needs an end-of-sequence token, and this tokenizer names none"
            )
        ends = set(self.eos_token_ids)
        self.special_token_ids = sorted(
            t for t in tokenizer.special_token_ids | ends if t < vocab_size
        )
        self._special = frozenset(self.special_token_ids)
        self._tokenizer = tokenizer
        # spells any bytes, whether or not the tokenizer would cut them so
        self.byte_tokens = {
            text: token_id
            for token_id, text in enumerate(self.token_bytes)
            if len(text) == 1 and token_id not in self._special
        }

    def spell(self, text: bytes) -> list[int] | None:
        """Tokens that add up to `text`, one per byte; None if a byte has no token of its own."""
        ids = [self.byte_tokens.get(text[at : at + 1]) for at in range(len(text))]
        known = [token_id for token_id in ids if token_id is not None]
        return known if len(known) == len(ids) else None

    def cut(self, text: bytes) -> list[int]:
        """Tokens of a text as the tokenizer cuts it in the middle of a longer one.

        Never special tokens, which a text may spell out. Empty if there is no way to spell it.
        """
        # SentencePiece puts a space before the first word: let something else come first
        for first in ("", _MARK):
            ids = self._encode(first + text.decode("utf-8", errors="replace"))
            dropped = b""
            while ids and len(dropped.lstrip(b" ")) < len(first):
                dropped += self.token_bytes[ids.pop(0)]
            joined = b"".join(self.token_bytes[token_id] for token_id in ids)
            if joined == text and not self._special.intersection(ids):
                return ids
        return self.spell(text) or []

    def _encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return ids if max(ids, default=0) < self.size else []

    def for_llguidance(self) -> LLTokenizer:
        """The tokenizer llguidance computes masks with; takes a good part of a second."""
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(
            TokenizerWrapper(_Source(self)),
            n_vocab=self.size,
            eos_token=self.eos_token_ids,
            slices=LLTokenizer.json_slices(),
        )


class _Source:
    """What TokenizerWrapper reads.

    Where the grammar leaves only one text, llguidance allows only the tokens the tokenizer itself
    would cut it into, as the model has seen it; so the cut must be the tokenizer's.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = vocabulary.special_token_ids
        self._vocabulary = vocabulary

    def __call__(self, text: bytes) -> list[int]:
        return self._vocabulary.cut(text)
