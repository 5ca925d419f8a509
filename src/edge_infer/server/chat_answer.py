"""The events of a chat as OpenAI's answer, whole or in chunks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edge_infer.engine.sampler import Sampled
from edge_infer.server.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.openai_words import answer_head, chat_logprobs
from edge_infer.server.state import ServerState


@dataclass
class _Choice:
    """One answer as it is put together."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[Sampled] | None = None
    end: Finished | None = None


class ChatAnswer:
    """Gathers events into one `chat.completion`."""

    def __init__(self, state: ServerState, n: int) -> None:
        self._state = state
        self._choices = [_Choice() for _ in range(n)]

    @property
    def complete(self) -> bool:
        """Whether every answer has ended by itself."""
        return all(choice.end is not None for choice in self._choices)

    def take(self, index: int, event: Event) -> None:
        """Add an event of answer `index`."""
        choice = self._choices[index]
        match event:
            case ContentDelta(text):
                choice.content.append(text)
            case ReasoningDelta(text):
                choice.reasoning.append(text)
            case ToolCallStart(_, call_id, name):
                called = {"name": name, "arguments": ""}
                choice.tool_calls.append({"id": call_id, "type": "function", "function": called})
            case ToolCallArguments(call, text):
                choice.tool_calls[call]["function"]["arguments"] += text
            case TokenLogprobs(items):
                choice.logprobs = [*(choice.logprobs or ()), *items]
            case Finished():
                choice.end = event

    def body(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The response's body."""
        return {
            **answer_head(self._state, "chatcmpl", "chat.completion"),
            "choices": [self._choice(index) for index in range(len(self._choices))],
            "usage": usage,
        }

    def _choice(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        content = "".join(choice.content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if choice.tool_calls and not content else content,
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.tool_calls:
            message["tool_calls"] = choice.tool_calls
        logprobs = None
        if choice.logprobs is not None:
            items = chat_logprobs(self._state.tokenizer, choice.logprobs)
            logprobs = {"content": items, "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": None if choice.end is None else choice.end.reason,
            "stop_reason": None if choice.end is None else choice.end.stop,
        }


class ChatStream:
    """Turns events into `chat.completion.chunk`s."""

    def __init__(self, state: ServerState, n: int) -> None:
        self._state = state
        self._n = n
        self._head = answer_head(state, "chatcmpl", "chat.completion.chunk")
        self._logprobs: list[list[Sampled]] = [[] for _ in range(n)]
        self._ended = 0

    @property
    def complete(self) -> bool:
        """Whether every answer has ended by itself."""
        return self._ended == self._n

    def start(self) -> list[dict[str, Any]]:
        """The chunks before all others: each answer's role."""
        role = {"role": "assistant", "content": ""}
        return [self._chunk(index, dict(role)) for index in range(self._n)]

    def take(self, index: int, event: Event) -> list[dict[str, Any]]:
        """The chunks of an event; log-probabilities go with the next text, or with the end."""
        match event:
            case ContentDelta(text):
                return [self._chunk(index, {"content": text})]
            case ReasoningDelta(text):
                return [self._chunk(index, {"reasoning_content": text})]
            case ToolCallStart(call, call_id, name):
                called = {"name": name, "arguments": ""}
                part = {"index": call, "id": call_id, "type": "function", "function": called}
                return [self._chunk(index, {"tool_calls": [part]})]
            case ToolCallArguments(call, text):
                part = {"index": call, "function": {"arguments": text}}
                return [self._chunk(index, {"tool_calls": [part]})]
            case TokenLogprobs(items):
                self._logprobs[index].extend(items)
                return []
            case Finished():
                self._ended += 1
                chunk = self._chunk(index, {}, event.reason)
                chunk["choices"][0]["stop_reason"] = event.stop
                return [chunk]

    def last(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk, which has the usage and no choices."""
        return {**self._head, "choices": [], "usage": usage}

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None = None
    ) -> dict[str, Any]:
        logprobs = None
        if self._logprobs[index]:
            items = chat_logprobs(self._state.tokenizer, self._logprobs[index])
            self._logprobs[index] = []
            logprobs = {"content": items, "refusal": None}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "choices": [choice]}
