"""The official OpenAI client's Responses API against a real server process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pydantic
import pytest
from tests.e2e.server.conftest import RunningServer
from tests.e2e.server.test_openai_client import read_status

MODEL = "smollm2-135m"
QUESTION = "What is the capital of France?"
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 32}


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_an_answer_repeats_what_was_asked_and_counts(client: openai.OpenAI) -> None:
    for _ in range(2):
        answer = client.responses.create(
            **GREEDY, input=QUESTION, instructions="Be brief.", metadata={"trace": "7"}
        )
    assert "Paris" in answer.output_text
    assert answer.status == "completed"
    assert answer.incomplete_details is None
    assert answer.instructions == "Be brief."
    assert answer.metadata == {"trace": "7"}
    assert answer.temperature == 0
    assert answer.max_output_tokens == 32
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.usage.input_tokens_details.cached_tokens >= 16  # the second time
    assert answer.usage.output_tokens_details.reasoning_tokens == 0


def test_the_events_of_a_stream_are_the_answer(client: openai.OpenAI) -> None:
    whole = client.responses.create(**GREEDY, input=QUESTION)
    events = list(client.responses.create(**GREEDY, input=QUESTION, stream=True))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 3
    assert kinds == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *["response.output_text.delta"] * deltas,
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.completed"),
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_the_clients_own_stream_helper(client: openai.OpenAI) -> None:
    whole = client.responses.create(**GREEDY, input=QUESTION)
    with client.responses.stream(**GREEDY, input=QUESTION) as stream:
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.output[0].id != whole.output[0].id


def test_an_answer_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    arguments = {**GREEDY, "max_output_tokens": 3, "input": QUESTION}
    answer = client.responses.create(**arguments)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    events = list(client.responses.create(**arguments, stream=True))
    assert events[-1].type == "response.incomplete"


def test_a_conversation_goes_on_with_the_items_of_the_answer(client: openai.OpenAI) -> None:
    told = {"role": "user", "content": "My name is Ada. Say hello to me."}
    first = client.responses.create(**GREEDY, input=[told])
    asked = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "What is my name?"}],
    }
    second = client.responses.create(**GREEDY, input=[told, *first.output, asked])
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= 16
    # The same conversation as chat messages is the same prompt.
    chat = client.chat.completions.create(
        model=MODEL,
        temperature=0,
        max_tokens=32,
        messages=[
            told,
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": asked["content"][0]["text"]},
        ],
    )
    assert chat.choices[0].message.content == second.output_text
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == second.usage.input_tokens


def test_logprobs_are_those_of_chat_completions(client: openai.OpenAI) -> None:
    arguments = {**GREEDY, "max_output_tokens": 4, "input": QUESTION, "top_logprobs": 2}
    answer = client.responses.create(**arguments, include=["message.output_text.logprobs"])
    part = answer.output[0].content[0]
    assert part.logprobs is not None
    assert len(part.logprobs) == 4
    assert b"".join(bytes(token.bytes) for token in part.logprobs).decode() == part.text
    chat = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    )
    assert chat.choices[0].logprobs is not None
    expected = [token.logprob for token in chat.choices[0].logprobs.content or ()]
    assert [token.logprob for token in part.logprobs] == pytest.approx(expected)
    streamed = []
    for event in client.responses.create(
        **arguments, include=["message.output_text.logprobs"], stream=True
    ):
        if event.type == "response.output_text.delta":
            streamed.extend(token.logprob for token in event.logprobs)
    assert streamed == pytest.approx(expected)


def test_structured_output(client: openai.OpenAI) -> None:
    class City(pydantic.BaseModel):
        name: str
        in_europe: bool

    arguments = {**GREEDY, "max_output_tokens": 64, "input": QUESTION}
    parsed = client.responses.parse(**arguments, text_format=City)
    assert isinstance(parsed.output_parsed, City)
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    loose = client.responses.create(**arguments, text={"format": {"type": "json_object"}})
    assert loose.output_text.lstrip().startswith("{")  # unconstrained it is a sentence


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"temperature": -1}, "invalid_value", "temperature"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": [{"role": "owner", "content": "x"}]}, "invalid_value", "input[0].role"),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}
                ]
            },
            "unsupported_parameter",
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "item_reference", "id": "msg_1"}]},
            "unsupported_parameter",
            "input[0].type",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]},
            "invalid_value",
            "input[0].call_id",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "1"}]},
            "invalid_value",
            "input[0].arguments",
        ),
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"reasoning": {"effort": "high"}}, "unsupported_parameter", "reasoning.effort"),
        ({"include": ["reasoning.encrypted_content"]}, "unsupported_parameter", "include[0]"),
        ({"top_logprobs": 2}, "invalid_value", "top_logprobs"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"extra_body": {"no_such_thing": 1}}, "unknown_parameter", "no_such_thing"),
        ({"model": "smollm2-135m", "input": "word " * 9000}, "context_length_exceeded", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_names_the_parameter(
    client: openai.OpenAI, change: dict[str, Any], code: str, param: str | None, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**{**GREEDY, "input": QUESTION, **change}, stream=stream)
    assert error.value.code == code
    assert error.value.param == param
    assert param is None or param in error.value.message


def test_what_is_accepted_without_effect(client: openai.OpenAI) -> None:
    plain = client.responses.create(**GREEDY, input=QUESTION)
    decorated = client.responses.create(
        **GREEDY,
        input=QUESTION,
        store=False,
        background=False,
        truncation="disabled",
        service_tier="auto",
        user="someone",
        prompt_cache_key="key",
        text={"format": {"type": "text"}, "verbosity": "medium"},
    )
    assert decorated.output_text == plain.output_text
    assert decorated.store is False


def test_a_client_that_goes_frees_its_place(server: RunningServer) -> None:
    async def main() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none")
        arguments: dict[str, Any] = {
            "model": MODEL,
            "input": QUESTION,
            "max_output_tokens": 4000,
            "extra_body": {"ignore_eos": True},
        }
        stream = await client.responses.create(**arguments, stream=True)
        await anext(aiter(stream))
        whole = asyncio.create_task(client.responses.create(**arguments))
        await until_running(server, 2)
        await stream.close()
        whole.cancel()
        await until_running(server, 0)
        await client.close()

    asyncio.run(main())


def test_a_stop_fails_the_response(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(ends=True)
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        stream = client.responses.create(
            model=MODEL, input=QUESTION, stream=True, extra_body={"ignore_eos": True}
        )
        events = [next(stream)]
        server.process.send_signal(signal.SIGTERM)
        events.extend(stream)
    last = events[-1]
    assert last.type == "response.failed"
    assert last.sequence_number == len(events) - 1
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "shutting down" in last.response.error.message
    assert server.process.wait(10) == 0


WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
FORCED: dict[str, Any] = {
    "model": MODEL,
    "temperature": 0,
    "max_output_tokens": 200,
    "input": "How is the weather in Rome?",
    "tools": [WEATHER, {**WEATHER, "name": "get_climate"}],
    "parallel_tool_calls": False,
}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "name": "get_climate"}], ids=["any", "named"]
)
def test_a_forced_call_keeps_the_schema(client: openai.OpenAI, choice: Any) -> None:
    answer = client.responses.create(**FORCED, tool_choice=choice)
    assert answer.status == "completed"
    (call,) = answer.output
    assert call.type == "function_call"
    assert call.name == ("get_climate" if isinstance(choice, dict) else call.name)
    assert call.name in {"get_weather", "get_climate"}
    arguments = json.loads(call.arguments)
    assert arguments["city"] in {"Paris", "Rome"}
    assert 1 <= arguments["days"] <= 9
    assert answer.output_text == ""
    assert answer.tools[0].name == "get_weather"

    events = list(client.responses.create(**FORCED, tool_choice=choice, stream=True))
    kinds = [event.type for event in events]
    assert kinds[2] == "response.output_item.added"
    assert kinds[-3:] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 3
    assert "".join(deltas) == call.arguments
    assert events[-3].arguments == call.arguments
    assert events[-2].item.call_id == events[2].item.call_id
    assert events[-1].response.output == [events[-2].item]


def test_a_schema_that_cannot_be_kept_names_its_tool(client: openai.OpenAI) -> None:
    tool = {**WEATHER, "name": "other", "parameters": {"type": "object", "not": {}}}
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**{**FORCED, "tools": [WEATHER, tool]}, tool_choice="required")
    assert error.value.code == "invalid_grammar"
    assert error.value.param == "tools[1].parameters"
    assert "tools[1].parameters" in error.value.message


def test_the_result_of_a_call_goes_into_the_conversation(client: openai.OpenAI) -> None:
    asked = {"role": "user", "content": FORCED["input"]}
    first = client.responses.create(**{**FORCED, "input": [asked]}, tool_choice="required")
    (call,) = first.output
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Snow, -40 C."}
    arguments = {**FORCED, "tool_choice": "none"}
    second = client.responses.create(**{**arguments, "input": [asked, *first.output, output]})
    assert second.output_text
    assert [item.type for item in second.output] == ["message"]
    other = {**output, "output": "Sun."}
    third = client.responses.create(**{**arguments, "input": [asked, *first.output, other]})
    assert third.usage.input_tokens < second.usage.input_tokens  # the model reads the output


async def until_running(server: RunningServer, count: int) -> None:
    for _ in range(200):
        status = await asyncio.to_thread(read_status, server.base_url)
        if status["requests"]["running"] == count:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"still {status}")
