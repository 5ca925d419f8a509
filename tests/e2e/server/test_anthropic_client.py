"""The official Anthropic client against a real server process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pydantic
import pytest
from tests.e2e.server.conftest import RunningServer
from tests.e2e.server.plain_http import request
from tests.e2e.server.test_openai_responses import until_running

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# This client knows no temperature; the API does.
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 32, "extra_body": {"temperature": 0}}


@pytest.fixture
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.base_url, api_key="none", max_retries=0) as client:
        yield client


def text_of(message: Any) -> str:
    """The text of a message that has one block of it."""
    (block,) = message.content
    assert block.type == "text"
    return str(block.text)


def test_an_answer_and_its_usage(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**GREEDY, messages=QUESTION, system="Be brief.")
    again = client.messages.create(**GREEDY, messages=QUESTION, system="Be brief.")
    assert "Paris" in text_of(first)
    assert text_of(again) == text_of(first)
    assert first.role == "assistant"
    assert first.model == MODEL
    assert first.stop_reason == "end_turn"
    assert first.stop_sequence is None
    assert first.usage.output_tokens > 3
    # The second time the prompt's full blocks were there; input_tokens leaves them out.
    assert again.usage.cache_read_input_tokens is not None
    assert again.usage.cache_read_input_tokens >= 16
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION, system="Be brief.")
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == counted.input_tokens


def test_the_prompt_is_that_of_chat_completions(
    client: anthropic.Anthropic, server: RunningServer
) -> None:
    blocks = [{"type": "text", "text": "Hello.", "cache_control": {"type": "ephemeral"}}]
    counted = client.messages.count_tokens(
        model=MODEL,
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        messages=[
            {"role": "user", "content": blocks},
            {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
            {"role": "user", "content": "Who"},
            {"role": "user", "content": "are you?"},
        ],
    )
    messages = [
        {"role": "system", "content": "Be brief.\nBe kind."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Who\nare you?"},
    ]
    assert (
        counted.input_tokens
        == request(server.base_url, "/tokenize", {"messages": messages}).json["count"]
    )


def test_the_events_of_a_stream_are_the_answer(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**GREEDY, messages=QUESTION)
    events = list(client.messages.create(**GREEDY, messages=QUESTION, stream=True))
    kinds = [event.type for event in events]
    deltas = kinds.count("content_block_delta")
    assert deltas > 3
    assert kinds == [
        *("message_start", "content_block_start"),
        *["content_block_delta"] * deltas,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    texts = [event.delta.text for event in events if event.type == "content_block_delta"]
    assert "".join(texts) == text_of(whole)
    with client.messages.stream(**GREEDY, messages=QUESTION) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == text_of(whole)
    assert text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.usage.cache_read_input_tokens is not None
    assert whole.usage.cache_read_input_tokens is not None
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == (
        whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    )


def test_a_ping_comes_with_the_first_token(server: RunningServer) -> None:
    body = {"max_tokens": 2, "messages": QUESTION, "stream": True}
    answer = request(server.base_url, "/v1/messages", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.body.decode().split("\n\n")
    assert blocks[1] == 'event: ping\ndata: {"type":"ping"}'
    assert blocks[-2:] == ['event: message_stop\ndata: {"type":"message_stop"}', ""]


@pytest.mark.parametrize("stream", [False, True])
def test_what_ends_an_answer(client: anthropic.Anthropic, stream: bool) -> None:
    def answer(**change: Any) -> anthropic.types.Message:
        arguments = {**GREEDY, "messages": QUESTION, **change}
        if not stream:
            return client.messages.create(**arguments)
        with client.messages.stream(**arguments) as events:
            return events.get_final_message()

    stopped = answer(stop_sequences=[" of"])
    assert stopped.stop_reason == "stop_sequence"
    assert stopped.stop_sequence == " of"
    assert " of" not in text_of(stopped)
    cut = answer(max_tokens=3)
    assert cut.stop_reason == "max_tokens"
    assert cut.stop_sequence is None
    assert cut.usage.output_tokens == 3


def test_structured_output(client: anthropic.Anthropic) -> None:
    class City(pydantic.BaseModel):
        name: str
        in_europe: bool

    schema = {**City.model_json_schema(), "additionalProperties": False}
    answer = client.messages.create(
        **{**GREEDY, "max_tokens": 64},
        messages=QUESTION,
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert City.model_validate_json(text_of(answer)).name


IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"extra_body": {"temperature": -1}}, "temperature is -1"),
        ({"messages": []}, "messages is []"),
        ({"messages": [{"role": "owner", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "song"}]}]},
            'messages[0].content[0].type is "song"',
        ),
        (
            {"messages": [{"role": "user", "content": [RESULT]}]},
            "messages[0].content[0].tool_use_id is 'toolu_1'",
        ),
        ({"messages": [{"role": "assistant", "content": "It is"}]}, "messages[0].role"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens is 10"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "which is 32"),
        ({"thinking": {"type": "adaptive"}}, "thinking is not supported"),
        ({"extra_body": {"mcp_servers": []}}, "mcp_servers is not supported"),
        ({"extra_body": {"no_such_thing": 1}}, "no_such_thing"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "8192"),
    ],
)
def test_a_refusal_says_what_is_wrong(
    client: anthropic.Anthropic, change: dict[str, Any], said: str, stream: bool
) -> None:
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(**{**GREEDY, "messages": QUESTION, **change}, stream=stream)
    body = error.value.body
    assert isinstance(body, dict)
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert said in body["error"]["message"]


def test_max_tokens_must_be_given(server: RunningServer) -> None:
    answer = request(server.base_url, "/v1/messages", {"messages": QUESTION})
    assert answer.status == 400
    assert answer.json["error"]["message"] == "max_tokens is missing"


def test_another_model_is_not_found(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(**{**GREEDY, "model": "other"}, messages=QUESTION)


def test_what_is_accepted_without_effect(client: anthropic.Anthropic) -> None:
    plain = client.messages.create(**GREEDY, messages=QUESTION)
    decorated = client.messages.create(
        **GREEDY,
        messages=QUESTION,
        metadata={"user_id": "someone"},
        service_tier="auto",
        cache_control={"type": "ephemeral", "ttl": "1h"},
        thinking={"type": "disabled"},
    )
    assert text_of(decorated) == text_of(plain)


def test_the_key_may_come_as_x_api_key(start_server: Callable[..., RunningServer]) -> None:
    server = start_server("--api-key", "secret")
    with anthropic.Anthropic(base_url=server.base_url, api_key="secret") as client:
        assert client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens > 3
    with (
        anthropic.Anthropic(base_url=server.base_url, api_key="wrong") as client,
        pytest.raises(anthropic.AuthenticationError) as error,
    ):
        client.messages.count_tokens(model=MODEL, messages=QUESTION)
    assert isinstance(error.value.body, dict)
    assert error.value.body["error"]["type"] == "authentication_error"


def test_a_client_that_goes_frees_its_place(server: RunningServer) -> None:
    async def main() -> None:
        client = anthropic.AsyncAnthropic(base_url=server.base_url, api_key="none", timeout=60)
        arguments: dict[str, Any] = {
            "model": MODEL,
            "messages": QUESTION,
            "max_tokens": 4000,
            "extra_body": {"ignore_eos": True},
        }
        stream = await client.messages.create(**arguments, stream=True)
        await anext(aiter(stream))
        whole = asyncio.create_task(client.messages.create(**arguments))
        await until_running(server, 2)
        await stream.close()
        whole.cancel()
        await until_running(server, 0)
        await client.close()

    asyncio.run(main())


def test_a_stop_ends_the_stream_with_an_error(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(ends=True)
    with anthropic.Anthropic(base_url=server.base_url, api_key="none", max_retries=0) as client:
        stream = client.messages.create(
            model=MODEL,
            messages=QUESTION,
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        assert next(stream).type == "message_start"
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(anthropic.APIStatusError, match="shutting down") as error:
            list(stream)
    assert isinstance(error.value.body, dict)
    assert error.value.body["error"]["type"] == "api_error"
    assert server.process.wait(10) == 0


WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
WEATHER_QUESTION = {"role": "user", "content": "How is the weather in Rome?"}
FORCED: dict[str, Any] = {
    **GREEDY,
    "max_tokens": 200,
    "messages": [WEATHER_QUESTION],
    "tools": [WEATHER, {**WEATHER, "name": "get_climate"}],
}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_climate"}])
def test_a_forced_call_keeps_the_schema(
    client: anthropic.Anthropic, choice: dict[str, Any]
) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = client.messages.create(**FORCED, tool_choice=choice)
    assert answer.stop_reason == "tool_use"
    (call,) = answer.content
    assert call.type == "tool_use"
    assert call.name == choice.get("name", call.name)
    assert call.name in {"get_weather", "get_climate"}
    assert call.input["city"] in {"Paris", "Rome"}
    assert 1 <= call.input["days"] <= 9

    pieces = []
    with client.messages.stream(**FORCED, tool_choice=choice) as stream:
        for event in stream:
            if event.type == "input_json":
                pieces.append(event.partial_json)
        final = stream.get_final_message()
    assert len(pieces) > 3
    assert final.stop_reason == "tool_use"
    (streamed,) = final.content
    assert streamed.type == "tool_use"
    assert (streamed.name, streamed.input) == (call.name, call.input)
    assert json.loads("".join(pieces)) == call.input


def test_a_schema_that_cannot_be_kept_names_its_tool(client: anthropic.Anthropic) -> None:
    tool = {"name": "other", "input_schema": {"type": "object", "not": {}}}
    with pytest.raises(anthropic.BadRequestError, match=r"tools\[1\]\.input_schema at"):
        client.messages.create(**{**FORCED, "tools": [WEATHER, tool]}, tool_choice={"type": "any"})


def test_the_result_of_a_call_goes_into_the_conversation(client: anthropic.Anthropic) -> None:
    first = client.messages.create(
        **FORCED, tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    (call,) = first.content

    def after(result: str) -> anthropic.types.Message:
        block = {"type": "tool_result", "tool_use_id": call.id, "content": result}
        messages = [WEATHER_QUESTION, first.to_param(), {"role": "user", "content": [block]}]
        return client.messages.create(
            **{**FORCED, "messages": messages}, tool_choice={"type": "none"}
        )

    second, third = after("Snow, -40 C, and a storm that does not end."), after("Sun.")
    assert second.stop_reason in {"end_turn", "max_tokens"}
    assert text_of(second)
    read = [m.usage.input_tokens + (m.usage.cache_read_input_tokens or 0) for m in (second, third)]
    assert read[0] > read[1] + 5  # the model reads the result


def test_a_call_that_is_cut_is_no_call(client: anthropic.Anthropic) -> None:
    arguments = {**FORCED, "tool_choice": {"type": "tool", "name": "get_weather"}}
    whole = client.messages.create(**arguments)
    arguments["max_tokens"] = whole.usage.output_tokens - 14  # within the call's input
    with client.messages.stream(**arguments) as stream:
        begun = stream.get_final_message().content
    assert [block.type for block in begun] == ["tool_use"]
    answer = client.messages.create(**arguments)
    assert answer.stop_reason == "max_tokens"
    assert answer.content == []
