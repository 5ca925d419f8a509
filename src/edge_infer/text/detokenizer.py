"""Text of a growing token sequence, a piece at a time.

A character may be split over tokens. Its bytes are held until it is complete, so that what has been
emitted is always whole text; bytes that can never become a character are emitted as U+FFFD, one for
each maximal ill-formed part (Unicode 15, section 3.9), as soon as that is certain.
"""

import codecs

from edge_infer.text.tokenizer import Tokenizer


class StreamDetokenizer:
    """Detokenizes one sequence; all pushes and `finish` together equal `tokenizer.decode`.

    With `continues`, the tokens go on from text that is already visible (a completion rather than
    an answer), so the space SentencePiece writes before the first word is content and kept.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, continues: bool = False
    ) -> None:
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._strip = tokenizer.strips_leading_space and not continues
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window = None if tokenizer.decodes_by_bytes else _WindowedDecoder(tokenizer)

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that became complete, often one token's, maybe none."""
        if token_id in self._skipped:
            return ""
        if self._window is not None:
            return self._window.push(token_id)
        piece = self._token_bytes(token_id)
        if self._strip and piece:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """End of the sequence: what was held back, incomplete characters as U+FFFD."""
        if self._window is not None:
            return self._window.finish()
        return self._utf8.decode(b"", final=True)


class _WindowedDecoder:
    """For decoders whose output for a token depends on the token before it (WordPiece, Metaspace).

    Decodes the last emitted tokens with and without the new ones; the difference is the new text.
    The window only grows while a character is incomplete.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._new_text()
        if not text or text.endswith("\ufffd"):
            return ""
        self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        text = self._new_text()
        self._context, self._pending = self._pending, []
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._context, skip_special_tokens=False)
        whole = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=False)
        return whole[len(before) :]
