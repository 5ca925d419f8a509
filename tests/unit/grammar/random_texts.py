"""Random texts under a grammar."""

import numpy as np
from numpy.typing import NDArray

from edge_infer.engine.sampler import Sampler
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.grammar import CompiledGrammar
from edge_infer.text import Tokenizer


class RandomTexts:
    """Random texts under a grammar, drawn by the engine's sampler at temperature 1.5.

    Tokens that close strings, objects and texts are likelier, the more the longer the text is, and
    white space is less likely, so that texts come to an end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._tokenizer = tokenizer
        self._bank: NDArray[np.float32] = random.standard_normal((16, vocab_size), np.float32)
        self._closing = np.zeros(vocab_size, np.float32)
        for token_id in range(vocab_size):
            text = tokenizer.token_bytes(token_id)
            if text in (b'"', b"}", b"]", b'"}', b'"]') or token_id in tokenizer.eos_token_ids:
                self._closing[token_id] = 14.0
            elif text == b",":
                self._closing[token_id] = 10.0
            elif not text.strip():
                self._bank[:, token_id] -= 6.0

    def sample(self, grammar: CompiledGrammar, seed: int, max_tokens: int = 200) -> str | None:
        """A text, or None when it did not end within `max_tokens`."""
        matcher = grammar.matcher()
        params = SamplingParams(temperature=1.5, seed=seed)
        ends = self._tokenizer.eos_token_ids
        sampler = Sampler(params, self._bank.shape[1], ends, matcher=matcher)
        token_ids: list[int] = []
        for step in range(max_tokens):
            noise = self._bank[(seed + step) % len(self._bank)]
            token_id = sampler.sample(noise + self._closing * np.float32(1 + step / 50)).token_id
            if token_id in ends:
                return b"".join(map(self._tokenizer.token_bytes, token_ids)).decode()
            token_ids.append(token_id)
        return None
