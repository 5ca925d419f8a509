"""The next token of one sequence, from its logits.

The order is vLLM's: log-probabilities are taken from the model's own logits; then logit bias,
min_tokens and bad words, repetition, frequency and presence penalties, the grammar, temperature,
min_p, top_k, top_p, and the draw. Repetition counts prompt and output tokens, presence and
frequency the output only. Equal logits are decided for the lowest id.

Each sequence has its own generator, so a seed gives the same tokens whatever runs in the batch.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edge_infer.engine import truncation
from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.engine.truncation import Floats
from edge_infer.grammar import Matcher
from edge_infer.text import Tokenizer


class SamplerError(RuntimeError):
    """Logits no token can be sampled from: not finite, of a wrong shape, or all masked."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampled token. The log-probabilities are None unless the request asks for them.

    `top_logprobs` are (token id, log-probability) of the likeliest tokens, likeliest first.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] | None = None


class Sampler:
    """Samples for one sequence and remembers its output, for penalties and minimum lengths.

    Raises ValueError when a token id of the request is outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        eos_token_ids: Collection[int] = (),
        *,
        prompt_token_ids: Sequence[int] = (),
        bad_word_ids: Iterable[Sequence[int]] = (),
        matcher: Matcher | None = None,
    ) -> None:
        self._params = params
        self._vocab_size = vocab_size
        self._matcher = matcher
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        # A tokenizer may have more tokens than the model: those are never sampled.
        eos = {token for token in eos_token_ids if token < vocab_size}
        ends = set(params.stop_token_ids) | (set() if params.ignore_eos else eos)
        self._end_ids = np.array(sorted(ends), np.intp)
        self._bias_ids = np.array(list(params.logit_bias), np.intp)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        self._bad_words = [
            tuple(word) for word in bad_word_ids if len(word) and max(word) < vocab_size
        ]
        self._penalties = _Penalties(params, prompt_token_ids) if _has_penalties(params) else None
        self._output: list[int] = []
        seed = None if params.seed is None else params.seed % 2**64
        self._random = None if params.greedy else np.random.Generator(np.random.PCG64(seed))

    def _check_ids(self, name: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                raise ValueError(
                    f"{name} contains {token_id}; a token id must be below {self._vocab_size}"
                )

    def sample(self, logits: Floats) -> Sampled:
        """The next token from float32 logits [vocab_size], which are left as they are.

        Raises SamplerError, and GrammarError when following the grammar exceeds its limits.
        """
        if logits.shape != (self._vocab_size,) or logits.dtype != np.float32:
            raise SamplerError(
                f"logits are {logits.dtype} {logits.shape}; "
                f"float32 ({self._vocab_size},) is expected"
            )
        best = _argmax(logits, "the model's logits")
        processed = self._process(logits)
        if processed is not logits:
            best = _argmax(processed, self._what_is_left())
        token_id = best if self._random is None else self._draw(processed, self._random)
        self._output.append(token_id)
        if self._matcher is not None:
            self._matcher.accept(token_id)
        if self._penalties is not None:
            self._penalties.record(token_id)
        if self._params.logprobs is None:
            return Sampled(token_id)
        return _with_logprobs(logits, token_id, self._params.logprobs)

    def _process(self, logits: Floats) -> Floats:
        """The logits after everything before the temperature; a copy if any of it applies."""
        too_short = len(self._output) < self._params.min_tokens
        banned = [*self._banned_ids(), *(self._end_ids if too_short else ())]
        if self._matcher is None:
            return self._adjusted(logits, banned)
        processed = self._constrained(logits, banned, self._matcher)
        if too_short and processed.max() == -np.inf:
            # The grammar wins over min_tokens: when all it allows ends the text, the text ends.
            processed = self._constrained(logits, self._banned_ids(), self._matcher)
        return processed

    def _constrained(self, logits: Floats, banned: Sequence[int], matcher: Matcher) -> Floats:
        """Adjusted logits of what the grammar allows: it comes last, so no bias enables a token."""
        adjusted = self._adjusted(logits, banned)
        if adjusted is logits:
            adjusted = logits.copy()
        matcher.mask(adjusted)
        return adjusted

    def _adjusted(self, logits: Floats, banned: Sequence[int]) -> Floats:
        if not len(banned) and not len(self._bias_ids) and self._penalties is None:
            return logits
        logits = logits.copy()
        logits[self._bias_ids] += self._bias
        logits[banned] = -np.inf
        if self._penalties is not None:
            self._penalties.apply(logits)
        return logits

    def _what_is_left(self) -> str:
        if self._matcher is None:
            return "the logits after biases, bans and penalties"
        return "the logits after biases, bans, penalties and the grammar"

    def _banned_ids(self) -> list[int]:
        """The last token of each bad word that would be complete with it."""
        return [
            word[-1]
            for word in self._bad_words
            if len(word) == 1 or tuple(self._output[1 - len(word) :]) == word[:-1]
        ]

    def _draw(self, logits: Floats, random: np.random.Generator) -> int:
        params = self._params
        ids, mass = truncation.candidates(
            logits,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )
        index = truncation.draw(mass, random.random())
        return index if ids is None else int(ids[index])


def bad_word_token_ids(words: Iterable[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token sequences of bad words, at the start of a text and after a space, as in vLLM."""
    sequences = []
    for word in words:
        plain = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        if plain:
            sequences.append(plain)
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        # a separate token for the space would make the ban depend on what comes before the word
        if spaced and plain and spaced[0] != plain[0] and len(spaced) == len(plain):
            sequences.append(spaced)
    return sequences


def _argmax(logits: Floats, what: str) -> int:
    """Index of the largest logit; numpy's argmax finds a NaN when there is one."""
    best = int(logits.argmax())
    value = logits[best]
    if np.isfinite(value):
        return best
    if value == -np.inf:
        raise SamplerError(f"no token is left in {what}: all are -inf")
    raise SamplerError(f"{what} have {value} at token {best}; finite values or -inf are expected")


def _with_logprobs(logits: Floats, token_id: int, count: int) -> Sampled:
    peak = float(logits.max())
    normalizer = peak + float(np.log(truncation.weights(logits, 1.0).sum(dtype=np.float64)))
    likeliest = truncation.largest(logits, min(count, len(logits)))
    return Sampled(
        token_id,
        float(logits[token_id]) - normalizer,
        tuple((int(i), float(logits[i]) - normalizer) for i in likeliest),
    )


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.repetition_penalty != 1.0
    )


class _Penalties:
    """Penalties on the tokens seen so far; work in proportion to the distinct ones."""

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        seen = dict.fromkeys(prompt_token_ids) if params.repetition_penalty != 1.0 else {}
        self._slot = {token_id: slot for slot, token_id in enumerate(seen)}
        capacity = len(seen) + 64
        self._ids = np.zeros(capacity, np.intp)
        self._ids[: len(seen)] = list(seen)
        self._counts = np.zeros(capacity, np.float32)  # in the output; 0 for a prompt token

    def record(self, token_id: int) -> None:
        slot = self._slot.setdefault(token_id, len(self._slot))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token_id
        self._counts[slot] += 1.0

    def apply(self, logits: Floats) -> None:
        seen = len(self._slot)
        ids, counts = self._ids[:seen], self._counts[:seen]
        values = logits[ids]
        values = np.where(values > 0.0, values / self._repetition, values * self._repetition)
        values -= self._frequency * counts + self._presence * (counts > 0.0)
        logits[ids] = values
