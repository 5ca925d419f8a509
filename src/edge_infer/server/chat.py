"""From a conversation to a stream of events: the one pipeline behind all chat-like APIs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeVar

from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.engine.sequence import Chunk
from edge_infer.server.async_engine import MAX_INLINE_CHARACTERS, Generation
from edge_infer.server.events import ContentDelta, Event, Finished, Reason, TokenLogprobs
from edge_infer.server.generating import submit
from edge_infer.server.metrics import Meter
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.parsing.messages import messages_for_template, tools_for_template
from edge_infer.server.parsing.output_format import (
    OutputFormat,
    call_format,
    detect_output_format,
)
from edge_infer.server.parsing.output_parser import OutputParser
from edge_infer.server.state import ServerState
from edge_infer.text.chat_prompt import ChatPrompt, encode_chat_prompt

T = TypeVar("T")
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

    @property
    def usable_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools the model is told of."""
        return () if self.tool_choice == "none" else self.tools

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return bool(self.tools) and self.tool_choice not in ("auto", "none")

    @property
    def has_strict_tools(self) -> bool:
        """Whether a call has to be valid where one is made."""
        return any(tool["function"].get("strict") for tool in self.usable_tools)


class ChatGeneration:
    """The answers to a call; iterate for (index of the answer, event), leave it to cancel.

    Iteration raises what ended an answer with an error. A cancelled one ends without `Finished`.
    """

    def __init__(
        self, state: ServerState, generation: Generation, call: ChatCall, form: OutputFormat
    ) -> None:
        self._generation = generation
        self._meter: Meter = state.metrics.meter()
        self._ends = state.tokenizer.eos_token_ids
        self._answers = [_Answer(_parser(call, form)) for _ in range(call.n)]
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
    """One answer as it grows. Without a parser all its text is content."""

    def __init__(self, parser: OutputParser | None) -> None:
        self._parser = parser
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    def push(self, chunk: Chunk) -> list[Event]:
        """The events of a chunk's text."""
        self.completion_tokens += len(chunk.token_ids)
        parser = self._parser
        if parser is None:
            return [ContentDelta(chunk.text)] if chunk.text else []
        reasoned = parser.in_reasoning
        events = parser.push(chunk.text)
        if reasoned or parser.in_reasoning:
            self.reasoning_tokens += len(chunk.token_ids)
        return events

    def finish(self, chunk: Chunk, stop: str | None) -> list[Event]:
        """The events of the end."""
        parser = self._parser
        events = [] if parser is None else parser.finish()
        reason: Reason = "length" if chunk.finish_reason == "length" else "stop"
        if reason == "stop" and parser is not None and parser.calls:
            reason = "tool_calls"
        return [*events, Finished(reason, self.completion_tokens, self.reasoning_tokens, stop)]


def _parser(call: ChatCall, form: OutputFormat) -> OutputParser | None:
    tools = call.usable_tools
    if not tools and form.reasoning is None:
        return None
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    return OutputParser(form, schemas, max_calls=None if call.parallel_tool_calls else 1)


async def start_chat(state: ServerState, call: ChatCall) -> ChatGeneration:
    """Render, tokenize and queue a call.

    Raises ParameterError and RequestError for what cannot be served, ChatTemplateError for what
    the template refuses, QueueFullError and EngineError.
    """
    token_ids, sampling, form = await _worked_out(_prepare, state, call)
    try:
        generation = await submit(
            state,
            token_ids,
            sampling,
            n=call.n,
            priority=call.priority,
            cache_salt=call.cache_salt,
        )
    except ValueError as error:
        from_tools = call.must_call or call.has_strict_tools
        if from_tools and getattr(error, "code", None) == "invalid_grammar":
            raise await asyncio.to_thread(_tools_fault, state, call, error) from error
        raise
    return ChatGeneration(state, generation, call, form)


async def encode_chat(state: ServerState, call: ChatCall) -> list[int]:
    """Token ids of a call's conversation. Raises ParameterError and ChatTemplateError."""
    return (await _worked_out(_prompt, state, call)).token_ids


async def _worked_out(
    work: Callable[[ServerState, ChatCall], T], state: ServerState, call: ChatCall
) -> T:
    """`work(state, call)`, beside the event loop where it may take long."""
    length = sum(len(str(message.get("content"))) for message in call.messages)
    if call.tools or length > MAX_INLINE_CHARACTERS:
        return await asyncio.to_thread(work, state, call)
    return work(state, call)


def _prepare(state: ServerState, call: ChatCall) -> tuple[list[int], SamplingParams, OutputFormat]:
    """The prompt, how to sample, and what to expect."""
    prompt = _prompt(state, call)
    form = detect_output_format(state.tokenizer, prompt_text_end=prompt.text[-64:])
    return prompt.token_ids, _sampling(call, form), form


def _prompt(state: ServerState, call: ChatCall) -> ChatPrompt:
    if not call.messages:
        raise ParameterError("messages is empty; at least one message is needed", param="messages")
    tokenizer, tools = state.tokenizer, tools_for_template(call.usable_tools)
    templates = tokenizer.chat_templates
    template = (templates.get("tool_use") if tools else None) or templates.get("default", "")
    knows_tools = call_format(template) is not None
    return encode_chat_prompt(
        tokenizer,
        messages_for_template(call.messages, template, tools=tools, knows_tools=knows_tools),
        tools=tools if tools and knows_tools else None,
        add_generation_prompt=call.add_generation_prompt,
        **call.template_kwargs,
    )


def _sampling(call: ChatCall, form: OutputFormat) -> SamplingParams:
    """What the tools and the reasoning make of the sampling parameters. Raises ParameterError."""
    sampling = call.sampling
    constraint = sampling.structured_outputs
    if call.must_call and constraint is not None:
        raise ParameterError(
            "tool_choice makes the answer a call; there is no other constraint beside it, "
            "such as response_format",
            param="tool_choice",
        )
    if constraint is None and (call.must_call or call.has_strict_tools):
        from edge_infer.server.parsing.call_grammar import tool_call_structured_outputs

        constraint = tool_call_structured_outputs(
            form, call.tools, call.tool_choice, call.parallel_tool_calls
        )
    elif constraint is not None and form.reasons and form.reasoning is not None:
        constraint = replace(constraint, after=constraint.after or form.reasoning[1])
    if constraint is not sampling.structured_outputs:
        sampling = replace(sampling, structured_outputs=constraint)
    if form.special_ids and (call.usable_tools or form.reasoning is not None):
        sampling = replace(sampling, skip_special_tokens=False)
    return sampling


def _tools_fault(state: ServerState, call: ChatCall, error: ValueError) -> ParameterError:
    """Which tool's schema it is that was refused."""
    from edge_infer.grammar import StructuredOutputs
    from edge_infer.server.parsing.call_grammar import tools_fault

    def compile_schema(schema: Mapping[str, Any]) -> None:
        outputs = StructuredOutputs(json_schema=schema)
        state.engine.engine.requests.build([0], SamplingParams(structured_outputs=outputs))

    return tools_fault(call.tools, compile_schema, error)
