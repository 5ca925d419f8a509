"""What a request asks of sampling and stopping, under vLLM's names."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from edge_infer.grammar import StructuredOutputs

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 64
MAX_TEMPERATURE = 1000.0  # flat already; far above, float32 scaling breaks down
GREEDY_TEMPERATURE = 1e-5  # below this sampling is greedy, as in vLLM


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping of one request; every field is checked when it is made.

    Raises TypeError for a wrong type or an unknown field and ValueError for a value out of range;
    the message names the field, the value and the limit.

    max_tokens: most tokens to generate; None is up to the end of the context.
    min_tokens: end-of-sequence and stop tokens are not sampled before this many.
    temperature: divides the logits; below 1e-5 the most likely token is taken.
    top_k: sample among the k most likely tokens; 0 or -1 is all of them.
    top_p: sample among the fewest tokens whose probabilities add up to p.
    min_p: leave out tokens less likely than min_p times the most likely one.
    presence_penalty: subtracted from the logits of tokens that were generated.
    frequency_penalty: the same for each time they were generated.
    repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt or
        the output; 1.0 is none.
    logit_bias: token id to a number added to its logit.
    seed: makes the sampled tokens repeatable, whatever else runs beside them.
    logprobs: log-probabilities for the sampled token and this many of the likeliest ones.
    stop: strings that end the text; a single one may be given as it is.
    stop_token_ids: tokens that end the text.
    bad_words: strings whose tokens are not to be generated in sequence.
    ignore_eos: go on after an end-of-sequence token.
    include_stop_str_in_output: keep the stop string at the end of the text.
    skip_special_tokens: leave special tokens out of the text.
    structured_outputs: a schema, expression or grammar the text must match.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        self._integer("max_tokens", low=1, optional=True)
        self._integer("min_tokens", low=0)
        self._number("temperature", low=0.0, high=MAX_TEMPERATURE)
        self._integer("top_k", low=-1)
        self._number("top_p", above=0.0, high=1.0)
        self._number("min_p", low=0.0, high=1.0)
        self._number("presence_penalty", low=-2.0, high=2.0)
        self._number("frequency_penalty", low=-2.0, high=2.0)
        self._number("repetition_penalty", low=0.001, high=1000.0)
        self._integer("seed", low=-(2**63), high=2**64 - 1, optional=True)
        self._integer("logprobs", low=0, high=MAX_LOGPROBS, optional=True)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens is {self.min_tokens}; it must be at most max_tokens, "
                f"which is {self.max_tokens}"
            )
        if isinstance(self.stop, str):
            self._set("stop", (self.stop,))
        self._strings("stop")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(
                f"stop has {len(self.stop)} strings; it must have at most {MAX_STOP_STRINGS}"
            )
        self._strings("bad_words")
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        self._set("logit_bias", _logit_bias(self.logit_bias))
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is {getattr(self, name)!r}; it must be true or false")
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise TypeError(
                f"structured_outputs is {self.structured_outputs!r}; it must be StructuredOutputs"
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken every time."""
        return self.temperature < GREEDY_TEMPERATURE

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _integer(
        self, name: str, *, low: int, high: int | None = None, optional: bool = False
    ) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError(f"{name} is {value!r}; it must be an integer")
        number = int(value)
        if number < low or (high is not None and number > high):
            limit = f"at least {low}" if high is None else f"between {low} and {high}"
            raise ValueError(f"{name} is {value}; it must be {limit}")
        self._set(name, number)

    def _number(
        self,
        name: str,
        *,
        low: float | None = None,
        above: float | None = None,
        high: float = math.inf,
    ) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} is {value!r}; it must be a number")
        number = float(value)
        small = number < low if low is not None else above is not None and number <= above
        if not math.isfinite(number) or small or number > high:
            limit = f"at least {low}" if low is not None else f"more than {above}"
            if high != math.inf:
                limit += f" and at most {high}"
            raise ValueError(f"{name} is {value}; it must be {limit}")
        self._set(name, number)

    def _strings(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"{name} is {value!r}; it must be a list of strings")
        for item in value:
            if not isinstance(item, str):
                raise TypeError(f"{name} contains {item!r}; it must be a list of strings")
            if not item:
                raise ValueError(f"{name} contains an empty string; one character is the least")
        self._set(name, tuple(value))


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise TypeError(f"{name} is {value!r}; it must be a list of token ids")
    for token_id in value:
        if isinstance(token_id, bool) or not isinstance(token_id, Integral):
            raise TypeError(f"{name} contains {token_id!r}; it must be a list of token ids")
        if token_id < 0:
            raise ValueError(f"{name} contains {token_id}; a token id must be at least 0")
    return tuple(int(token_id) for token_id in value)


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError(f"logit_bias is {value!r}; it must map token ids to numbers")
    ids = _token_ids("logit_bias", list(value))
    for token_id, bias in value.items():
        if isinstance(bias, bool) or not isinstance(bias, Real):
            raise TypeError(f"logit_bias[{token_id}] is {bias!r}; it must be a number")
        if not -100.0 <= float(bias) <= 100.0:
            raise ValueError(
                f"logit_bias[{token_id}] is {bias}; it must be between -100.0 and 100.0"
            )
    return dict(zip(ids, map(float, value.values()), strict=True))
