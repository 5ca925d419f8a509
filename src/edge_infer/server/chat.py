"""From a conversation to a stream of events: the one pipeline behind all chat-like APIs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.engine.sequence import Chunk
from edge_infer.server.async_engine import MAX_INLINE_CHARACTERS, Generation
from edge_infer.server.events import ContentDelta, Event, Finished, TokenLogprobs
from edge_infer.server.generating import submit
from edge_infer.server.metrics import Meter
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.state import ServerState

ToolChoice = str | Mapping[str, Any]  # auto, none, required, or OpenAI's object that names one


@dataclass(frozen=True, kw_only=True)
class ChatCall:
    """What a chat-like API asks for, whatever words it used.

    messages, tools and tool_choice have the form of OpenAI's chat completions. `sampling` carries
    the structured outputs. `template_kwargs` become variables of the chat template.
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    n: int = 1
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    priority: int = 0
    cache_salt: str = ""


class ChatGeneration:
    """The answers to a call; iterate for (index of the answer, event), leave it to cancel.

    Iteration raises what ended an answer with an error. A cancelled one ends without `Finished`.
    """

    def __init__(self, state: ServerState, generation: Generation, n: int) -> None:
        self._generation = generation
        self._meter: Meter = state.metrics.meter()
        self._ends = state.tokenizer.eos_token_ids
        self._answers = [_Answer() for _ in range(n)]
        self._events: deque[tuple[int, Event]] = deque()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._generation.prompt_token_ids)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed again, once the first event came."""
        return self._generation.num_cached_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers so far."""
        return sum(answer.completion_tokens for answer in self._answers)

    @property
    def reasoning_tokens(self) -> int:
        """Of these, the tokens of reasoning."""
        return sum(answer.reasoning_tokens for answer in self._answers)

    def cancel(self) -> None:
        """End what still runs."""
        self._generation.cancel()

    def __aiter__(self) -> ChatGeneration:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        while not self._events:
            index, chunk = await self._generation.__anext__()
            self._meter.chunk(index, chunk, self._generation.timings[index])
            self._take(index, chunk)
        return self._events.popleft()

    def _take(self, index: int, chunk: Chunk) -> None:
        answer = self._answers[index]
        events: list[Event] = []
        if chunk.logprobs:
            # The token that ends the answer has no text in it.
            ended = chunk.finish_reason == "stop" and chunk.token_ids[-1] in self._ends
            items = chunk.logprobs[:-1] if ended else chunk.logprobs
            if items:
                events.append(TokenLogprobs(items))
        events.extend(answer.push(chunk))
        if chunk.finish_reason is not None:
            stop = self._generation.stop_reasons[index]
            events.extend(answer.finish(chunk, stop if isinstance(stop, str) else None))
        self._events.extend((index, event) for event in events)

    async def __aenter__(self) -> ChatGeneration:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()


class _Answer:
    """One answer as it grows."""

    def __init__(self) -> None:
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    def push(self, chunk: Chunk) -> list[Event]:
        """The events of a chunk's text."""
        self.completion_tokens += len(chunk.token_ids)
        return [ContentDelta(chunk.text)] if chunk.text else []

    def finish(self, chunk: Chunk, stop: str | None) -> list[Event]:
        """The events of the end."""
        reason = "length" if chunk.finish_reason == "length" else "stop"
        return [Finished(reason, self.completion_tokens, stop=stop)]  # type: ignore[arg-type]


async def start_chat(state: ServerState, call: ChatCall) -> ChatGeneration:
    """Render, tokenize and queue a call.

    Raises ParameterError and RequestError for what cannot be served, ChatTemplateError for what
    the template refuses, QueueFullError and EngineError.
    """
    prompt = await encode_chat(state, call)
    generation = await submit(
        state,
        prompt,
        call.sampling,
        n=call.n,
        priority=call.priority,
        cache_salt=call.cache_salt,
    )
    return ChatGeneration(state, generation, call.n)


async def encode_chat(state: ServerState, call: ChatCall) -> list[int]:
    """Token ids of a call's conversation. Raises ParameterError and ChatTemplateError."""
    if not call.messages:
        raise ParameterError("messages is empty; at least one message is needed", param="messages")
    # A long conversation is rendered and tokenized beside the event loop.
    length = sum(len(str(message.get("content"))) for message in call.messages)
    if call.tools or length > MAX_INLINE_CHARACTERS:
        return await asyncio.to_thread(_encode, state, call)
    return _encode(state, call)


def _encode(state: ServerState, call: ChatCall) -> list[int]:
    return state.tokenizer.encode_chat(
        call.messages,
        tools=list(call.tools) or None,
        add_generation_prompt=call.add_generation_prompt,
        **call.template_kwargs,
    )
