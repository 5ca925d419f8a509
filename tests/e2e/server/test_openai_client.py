"""The official OpenAI client against a real server process."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import openai
import pytest
from tests.e2e.server.conftest import RunningServer

MODEL = "smollm2-135m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_an_answer_and_its_usage(client: openai.OpenAI) -> None:
    for _ in range(2):
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=32
        )
        assert "Paris" in (answer.choices[0].message.content or "")
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens == (
            answer.usage.prompt_tokens + answer.usage.completion_tokens
        )
    # The second time the prompt's full blocks were there.
    assert answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= 16


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    arguments = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**arguments).choices[0].message.content
    pieces, finish, usage = [], None, None
    for chunk in client.chat.completions.create(
        **arguments, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
        usage = chunk.usage or usage
    assert "".join(pieces) == whole
    assert len(pieces) > 3
    assert finish == "stop"
    assert usage is not None
    assert usage.completion_tokens > 3


def test_several_answers_with_a_seed(client: openai.OpenAI) -> None:
    arguments = {"model": MODEL, "messages": QUESTION, "n": 3, "seed": 7, "max_tokens": 16}
    first = client.chat.completions.create(**arguments, temperature=1.2)
    again = client.chat.completions.create(**arguments, temperature=1.2)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    for token in logprobs.content:
        assert token.top_logprobs[0].logprob == max(t.logprob for t in token.top_logprobs)
        assert token.logprob == token.top_logprobs[0].logprob  # greedy
    text = b"".join(bytes(token.bytes or []) for token in logprobs.content).decode()
    assert text == answer.choices[0].message.content


def test_stop_and_logit_bias(client: openai.OpenAI) -> None:
    stopped = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, stop=[" of"], max_tokens=32
    )
    assert " of" not in (stopped.choices[0].message.content or "")
    assert stopped.choices[0].finish_reason == "stop"
    biased = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=4, logit_bias={"28": 100}
    )
    assert biased.choices[0].finish_reason == "length"
    assert len(set(biased.choices[0].message.content or "")) == 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"messages": []}, "messages"),
        ({"stop": [""]}, "stop"),
        ({"top_logprobs": 99, "logprobs": True}, "top_logprobs"),
        ({"extra_body": {"no_such_thing": 1}}, "no_such_thing"),
    ],
)
def test_a_refusal_names_the_parameter(
    client: openai.OpenAI, change: dict[str, object], param: str
) -> None:
    arguments = {"model": MODEL, "messages": QUESTION, **change}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**arguments)  # type: ignore[call-overload]
    assert (error.value.param or "").startswith(param)
    assert error.value.code


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_fit_is_refused_with_both_counts(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "word " * 9000}],
            stream=stream,
        )
    assert error.value.code == "context_length_exceeded"
    assert "8192" in error.value.message


def test_a_client_that_goes_frees_its_place(server: RunningServer) -> None:
    async def main() -> None:
        client = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none")
        request = {"model": MODEL, "messages": QUESTION, "max_tokens": 4000}
        extra = {"ignore_eos": True}
        stream = await client.chat.completions.create(**request, stream=True, extra_body=extra)
        await anext(aiter(stream))
        whole = asyncio.create_task(client.chat.completions.create(**request, extra_body=extra))
        await until(lambda status: status["requests"]["running"] == 2)
        await stream.close()
        whole.cancel()
        await until(lambda status: status["requests"]["running"] == 0)
        await until(lambda status: status["kv_cache"]["used_bytes"] == 0)
        await client.close()

    async def until(condition: Callable[[dict[str, Any]], bool]) -> None:
        for _ in range(200):
            status = await asyncio.to_thread(read_status, server.base_url)
            if condition(status):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"still {status}")

    asyncio.run(main())


def read_status(base_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{base_url}/v1/status", timeout=10) as response:
        return dict(json.load(response))
