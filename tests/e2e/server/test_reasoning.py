"""A model that reasons, through the official clients: its reasoning is told apart in every API.

SmolLM2 does not reason, but with a chat template that opens the reasoning, and a conversation that
shows how, it goes on like that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from tests.e2e.server.conftest import RunningServer, _running

from edge_infer.hub.source import resolve_model

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>\n"
    "{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>"
    "{% if enable_thinking is defined and not enable_thinking %}</think>\n{% endif %}{% endif %}"
)
CAPITALS = {"Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin"}


def question(country: str) -> dict[str, Any]:
    return {"role": "user", "content": f"What is the capital of {country}?"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("models") / "thinker"
    folder.mkdir()
    for file in resolve_model("smollm2-135m").path.iterdir():
        os.symlink(file, folder / file.name)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    with _running(model=str(folder)) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat_completions(client: openai.OpenAI) -> None:
    messages: list[dict[str, Any]] = []
    for country, city in CAPITALS.items():
        said = {"role": "assistant", "content": f"{city}."}
        messages += [question(country), {**said, "reasoning_content": f"It is {city}."}]
    arguments: dict[str, Any] = {
        "model": "thinker",
        "temperature": 0,
        "max_tokens": 40,
        "messages": [*messages, question("France")],
    }
    answer = client.chat.completions.create(**arguments)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("It is Paris.", "Paris.")
    details = answer.usage.completion_tokens_details
    assert 4 <= details.reasoning_tokens < answer.usage.completion_tokens
    quick = client.chat.completions.create(**arguments, reasoning_effort="none")
    assert not hasattr(quick.choices[0].message, "reasoning_content")
    assert quick.choices[0].message.content  # another one, for it has not reasoned
    assert quick.usage.completion_tokens_details.reasoning_tokens == 0


def test_responses(client: openai.OpenAI) -> None:
    items: list[Any] = []
    for country, city in CAPITALS.items():
        thought = [{"type": "reasoning_text", "text": f"It is {city}."}]
        items += [
            question(country),
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": thought},
            {"role": "assistant", "content": f"{city}."},
        ]
    arguments: dict[str, Any] = {
        "model": "thinker",
        "temperature": 0,
        "max_output_tokens": 40,
        "input": [*items, question("France")],
    }
    answer = client.responses.create(**arguments)
    reasoning, message = answer.output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.content] == ["It is Paris."]
    assert message.type == "message"
    assert answer.output_text == "Paris."
    assert 4 <= answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens

    events = list(client.responses.create(**arguments, stream=True))
    thoughts = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "It is Paris."
    texts = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(texts) == "Paris."
    added = [e.item.type for e in events if e.type == "response.output_item.added"]
    assert added == ["reasoning", "message"]
    assert [item.type for item in events[-1].response.output] == added

    # The answer's own items, reasoning and all, go back into the conversation.
    follow = [*arguments["input"], *answer.output, question("Poland")]
    after = client.responses.create(**{**arguments, "input": follow})
    assert after.usage.input_tokens > answer.usage.total_tokens
    quick = client.responses.create(**arguments, reasoning={"effort": "none"})
    assert [item.type for item in quick.output] == ["message"]


def test_messages(server: RunningServer) -> None:
    messages: list[Any] = []
    for country, city in CAPITALS.items():
        thought = {"type": "thinking", "thinking": f"It is {city}.", "signature": ""}
        said = {"type": "text", "text": f"{city}."}
        messages += [question(country), {"role": "assistant", "content": [thought, said]}]
    arguments: dict[str, Any] = {
        "model": "thinker",
        "max_tokens": 1040,
        "messages": [*messages, question("France")],
        "extra_body": {"temperature": 0},
    }
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with anthropic.Anthropic(base_url=server.base_url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(**arguments, thinking=thinking)
        assert [block.type for block in answer.content] == ["thinking", "text"]
        assert answer.content[0].thinking == "It is Paris."
        assert answer.content[1].text == "Paris."
        details = answer.usage.output_tokens_details
        assert 4 <= details.thinking_tokens < answer.usage.output_tokens

        thoughts = []
        with client.messages.stream(**arguments, thinking={"type": "adaptive"}) as stream:
            for event in stream:
                if event.type == "thinking":
                    thoughts.append(event.thinking)
            final = stream.get_final_message()
        assert "".join(thoughts) == "It is Paris."
        assert [block.type for block in final.content] == ["thinking", "text"]
        assert final.content[1].text == "Paris."
        assert final.usage.output_tokens_details == details

        follow = [*arguments["messages"], answer.to_param(), question("Poland")]
        counted = client.messages.count_tokens(model="thinker", messages=follow)
        before = client.messages.count_tokens(model="thinker", messages=arguments["messages"])
        assert counted.input_tokens > before.input_tokens + answer.usage.output_tokens
        quick = client.messages.create(**arguments, thinking={"type": "disabled"})
        assert [block.type for block in quick.content] == ["text"]
