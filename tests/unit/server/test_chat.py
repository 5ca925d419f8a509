"""What tools and reasoning make of a call, and its events, without a model."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.server.conftest import HERMES, SPARK, MakeTokenizer

from edge_infer.engine.sampling_params import SamplingParams
from edge_infer.engine.sequence import Chunk
from edge_infer.grammar import GrammarError, StructuredOutputs
from edge_infer.server.chat import ChatCall, encode_chat, start_chat
from edge_infer.server.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.parameter_error import ParameterError

USER = [{"role": "user", "content": "?"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {}}}
OTHER = {"type": "function", "function": {"name": "then", "parameters": {"required": ["x"]}}}
NAMED = {"type": "function", "function": {"name": "now"}}


class Engine:
    """Answers every call with the same chunks, and keeps what it was asked."""

    def __init__(self, texts: list[str], finish: str = "stop", fault: Exception | None = None):
        self.texts, self.finish, self.fault = texts, finish, fault
        self.params = SamplingParams()
        self.prompt: list[int] = []
        self.engine = SimpleNamespace(requests=self)

    async def submit(self, prompt: list[int], params: SamplingParams, **_: Any) -> Any:
        self.prompt, self.params = prompt, params
        if self.fault is not None:
            raise self.fault
        return Generation(self)

    def build(self, _: list[int], params: SamplingParams) -> None:
        assert params.structured_outputs is not None
        schema = params.structured_outputs.json_schema
        assert isinstance(schema, dict)
        if "required" in schema:
            raise GrammarError("json_schema at #/required: no")


class Generation:
    num_cached_tokens = 0
    stop_reasons = (None,)
    timings = (None,)

    def __init__(self, engine: Engine) -> None:
        self.prompt_token_ids = engine.prompt
        self._chunks = [Chunk(text, [1, 2]) for text in engine.texts]
        self._chunks[-1].finish_reason = engine.finish  # type: ignore[assignment]

    async def __anext__(self) -> tuple[int, Chunk]:
        if not self._chunks:
            raise StopAsyncIteration
        return 0, self._chunks.pop(0)

    def cancel(self) -> None:
        self._chunks.clear()


def run(tokenizer: Any, engine: Engine, **changes: Any) -> tuple[list[Event], int]:
    """The events of a call, and its tokens of reasoning."""
    metrics = SimpleNamespace(meter=lambda: SimpleNamespace(chunk=lambda *_: None))
    state: Any = SimpleNamespace(tokenizer=tokenizer, engine=engine, metrics=metrics)
    call = ChatCall(**{"messages": USER, "sampling": SamplingParams(), **changes})

    async def main() -> tuple[list[Event], int]:
        async with await start_chat(state, call) as generation:
            assert generation.prompt_tokens == len(await encode_chat(state, call))
            return [event async for _, event in generation], generation.reasoning_tokens

    return asyncio.run(main())


def test_reasoning_content_and_a_call(make_tokenizer: MakeTokenizer) -> None:
    texts = ["<think>", "Hm", ".</think>", "\n\nOk", '<tool_call>{"name": "now"}', "</tool_call>"]
    events, reasoning_tokens = run(make_tokenizer(HERMES), Engine(texts), tools=[TOOL])
    start = events[3]
    assert isinstance(start, ToolCallStart)
    assert events == [
        ReasoningDelta("Hm"),
        ReasoningDelta("."),
        ContentDelta("Ok"),
        ToolCallStart(0, start.id, "now"),
        ToolCallArguments(0, "{}"),
        Finished("tool_calls", 12, 6),
    ]
    assert reasoning_tokens == 6


def test_an_answer_cut_in_a_call(make_tokenizer: MakeTokenizer) -> None:
    texts = ['<tool_call>{"name": "now", "arguments": {"a']
    events, _ = run(make_tokenizer(HERMES), Engine(texts, "length"), tools=[TOOL])
    assert events[1:] == [ToolCallArguments(0, '{"a'), Finished("length", 2)]


def test_calls_are_content_where_none_may_be_made(
    make_tokenizer: MakeTokenizer,
) -> None:
    texts = ['<tool_call>{"name": "now"}</tool_call>']
    engine = Engine(texts)
    events, _ = run(make_tokenizer(HERMES), engine, tools=[TOOL], tool_choice="none")
    assert events == [ContentDelta(texts[0]), Finished("stop", 2)]
    told = engine.prompt
    run(make_tokenizer(HERMES), engine, tools=[TOOL])
    assert len(engine.prompt) > len(told)


def test_one_call_where_calls_are_not_parallel(
    make_tokenizer: MakeTokenizer,
) -> None:
    engine = Engine(['<tool_call>{"name": "now"}</tool_call>'] * 2)
    tokenizer = make_tokenizer(HERMES)
    events, _ = run(tokenizer, engine, tools=[TOOL], parallel_tool_calls=False)
    assert sum(isinstance(event, ToolCallStart) for event in events) == 1
    events, _ = run(tokenizer, engine, tools=[TOOL])
    assert sum(isinstance(event, ToolCallStart) for event in events) == 2


def test_special_markers_are_in_the_text(make_tokenizer: MakeTokenizer) -> None:
    engine = Engine(["a"])
    run(make_tokenizer(HERMES), engine, tools=[TOOL])
    assert engine.params.skip_special_tokens
    special = make_tokenizer(HERMES, special=("<tool_call>",))
    run(special, engine, tools=[TOOL])
    assert not engine.params.skip_special_tokens
    run(special, engine, template_kwargs={"enable_thinking": False})
    assert engine.params.skip_special_tokens


def test_a_constraint_begins_behind_the_reasoning(
    make_tokenizer: MakeTokenizer,
) -> None:
    engine = Engine(["a"])
    sampling = SamplingParams(structured_outputs=StructuredOutputs(json_object=True))
    tokenizer = make_tokenizer(HERMES)
    run(tokenizer, engine, sampling=sampling)
    assert engine.params.structured_outputs == StructuredOutputs(json_object=True, after="</think>")
    run(tokenizer, engine, sampling=sampling, template_kwargs={"enable_thinking": False})
    assert engine.params.structured_outputs == sampling.structured_outputs
    run(make_tokenizer(SPARK), engine, tools=[TOOL], tool_choice="required")
    assert engine.params.structured_outputs is not None
    assert engine.params.structured_outputs.after == "</think>"
    assert engine.params.structured_outputs.grammar is not None


def test_a_call_and_another_constraint_are_refused(
    make_tokenizer: MakeTokenizer,
) -> None:
    sampling = SamplingParams(structured_outputs=StructuredOutputs(json_object=True))
    for choice in ("required", NAMED):
        with pytest.raises(ParameterError, match="response_format") as error:
            run(
                make_tokenizer(HERMES),
                Engine(["a"]),
                tools=[TOOL],
                tool_choice=choice,
                sampling=sampling,
            )
        assert error.value.param == "tool_choice"


def test_the_tool_at_fault_is_named(make_tokenizer: MakeTokenizer) -> None:
    engine = Engine(["a"], fault=GrammarError("grammar: no"))
    with pytest.raises(ParameterError) as error:
        run(make_tokenizer(HERMES), engine, tools=[TOOL, OTHER], tool_choice="required")
    assert error.value.param == "tools[1].function.parameters"
    assert error.value.code == "invalid_grammar"
    with pytest.raises(GrammarError, match="grammar: no"):  # not the tools' fault
        run(make_tokenizer(HERMES), engine, tools=[TOOL, OTHER])
