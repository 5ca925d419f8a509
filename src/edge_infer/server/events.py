"""What an answer is made of, in order; every API renders the same events in its own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edge_infer.engine.sampler import Sampled

Reason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call of a tool begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of a call's arguments, JSON once all pieces are put together."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of the tokens a step sampled."""

    items: Sequence[Sampled]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the answer. `stop` is the stop string that ended it, if one did."""

    reason: Reason
    completion_tokens: int
    reasoning_tokens: int = 0
    stop: str | None = None


Event = ReasoningDelta | ContentDelta | ToolCallStart | ToolCallArguments | TokenLogprobs | Finished
