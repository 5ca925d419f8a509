"""One sequence from admission to its last token."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edge_infer.engine.kv_blocks import EMPTY_KEY, block_key
from edge_infer.engine.prompt_lookup import PromptLookup
from edge_infer.engine.sampler import Sampled, Sampler
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.text.detokenizer import StreamDetokenizer
from edge_infer.text.stops import StopChecker

FinishReason = Literal["stop", "length", "cancelled", "error"]

_numbers = count()


@dataclass
class Chunk:
    """What one step added to a sequence: text that is safe to show, and its tokens."""

    text: str
    token_ids: list[int]
    logprobs: list[Sampled] | None = None
    finish_reason: FinishReason | None = None


@dataclass
class Timing:
    """Seconds on time.perf_counter's clock."""

    arrived: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    last_token: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrived


@dataclass(eq=False)
class Sequence:
    """A sequence's tokens, cache blocks and output.

    num_computed tokens are in the KV cache; the others are pending. After a prefill
    exactly one token is pending: the one sampled last.
    """

    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    sampler: Sampler
    detokenizer: StreamDetokenizer | None  # None without a tokenizer: no text
    stops: StopChecker
    end_token_ids: frozenset[int]
    priority: int = 0  # lower runs earlier
    cache_key: bytes = EMPTY_KEY  # sequences with another one share no computed blocks
    lookup: PromptLookup | None = None  # proposes draft tokens
    wants_hidden: bool = False  # ends after the prompt, with the last token's hidden state
    number: int = field(default_factory=lambda: next(_numbers))
    output_token_ids: list[int] = field(default_factory=list)
    block_tables: list[list[int]] = field(default_factory=list)  # of each KV group, once it runs
    num_computed: int = 0
    num_published: int = 0  # leading blocks of each table that others can find or were taken
    num_cached_tokens: int | None = None  # of the prompt, not computed; None until it runs
    hidden: NDArray[np.float32] | None = None
    finish_reason: FinishReason | None = None
    chunks: deque[Chunk] = field(default_factory=deque)
    timing: Timing = field(default_factory=Timing)
    error: Exception | None = None
    _keys: list[bytes] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens not yet in the KV cache."""
        return self.num_tokens - self.num_computed

    @property
    def num_tokens_left(self) -> int:
        """Tokens it may still get."""
        return self.max_tokens - len(self.output_token_ids)

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string, or the request's own stop token, that ended it."""
        if self.stops.matched is not None or self.finish_reason != "stop":
            return self.stops.matched
        last = self.output_token_ids[-1]
        return last if last in self.params.stop_token_ids else None

    def pending(self, num_tokens: int) -> list[int]:
        """The next num_tokens tokens to compute."""
        return self.tokens(self.num_computed, self.num_computed + num_tokens)

    def tokens(self, start: int, end: int) -> list[int]:
        """Prompt and output tokens from start to before end."""
        prompt = len(self.prompt_token_ids)
        if start >= prompt:
            return self.output_token_ids[start - prompt : end - prompt]
        return [
            *self.prompt_token_ids[start:end],
            *self.output_token_ids[: max(0, end - prompt)],
        ]

    def block_keys(self, count: int, block_size: int) -> list[bytes]:
        """Content keys of the sequence's blocks, of at least the first `count` full ones."""
        while len(self._keys) < count:
            start = len(self._keys) * block_size
            parent = self._keys[-1] if self._keys else self.cache_key
            self._keys.append(block_key(parent, self.tokens(start, start + block_size)))
        return self._keys

    def append(self, sampled: Sampled) -> None:
        """Take a sampled token: its text, the stop rules, and the chunk for the reader."""
        now = time.perf_counter()
        self.timing.first_token = self.timing.first_token or now
        self.timing.last_token = now
        token = sampled.token_id
        self.output_token_ids.append(token)
        reason: FinishReason | None = None
        if token in self.end_token_ids and len(self.output_token_ids) > self.params.min_tokens:
            reason = "stop"
            text, _ = self._flush()
        else:
            text = "" if self.detokenizer is None else self.detokenizer.push(token)
            stopped = False
            if len(self.output_token_ids) > self.params.min_tokens:
                text, stopped = self.stops.push(text)
            if stopped:
                reason = "stop"
            elif len(self.output_token_ids) >= self.max_tokens:
                held, stopped = self._flush()
                text += held
                reason = "stop" if stopped else "length"
        logprobs = None if self.params.logprobs is None else [sampled]
        # The end is published last: another thread that sees it finds the chunk.
        self.chunks.append(Chunk(text, [token], logprobs, reason))
        self.finish_reason = reason

    def fail(self, error: Exception) -> None:
        """End with an error, raised to whoever reads the sequence."""
        self.error = error
        self.finish_reason = "error"

    def _flush(self) -> tuple[str, bool]:
        """The text held back until the end, and whether a stop string ends it."""
        held = "" if self.detokenizer is None else self.detokenizer.finish()
        text, stopped = self.stops.push(held)
        return (text, True) if stopped else (text + self.stops.finish(), False)
