"""The body of a request for a response as the call it asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.responses.request import (
    RESPONSES_FIELDS,
    ResponsesRequest,
    read_responses_request,
)

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object"},
    "strict": True,
}
CHAT_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object"},
        "strict": True,
    },
}


def read(template: str = "", *, ignore: bool = False, **body: Any) -> ResponsesRequest:
    state = SimpleNamespace(
        settings=SimpleNamespace(ignore_unknown_parameters=ignore),
        tokenizer=SimpleNamespace(chat_template=template),
        check_model=lambda _: None,
    )
    return read_responses_request(state, {"input": "Hello", **body})  # type: ignore[arg-type]


def test_sampling() -> None:
    sampling = read(max_output_tokens=7, temperature=0.5, top_p=0.25, seed=3).call.sampling
    assert sampling.max_tokens == 7
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.25, 3)
    assert sampling.logprobs is None
    include = ["message.output_text.logprobs"]
    assert read(include=include).call.sampling.logprobs == 0
    assert read(include=include, top_logprobs=5).call.sampling.logprobs == 5


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tools_have_the_form_of_chat_completions(choice: Any, expected: Any) -> None:
    asked = read(tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert list(asked.call.tools) == [CHAT_TOOL]
    assert asked.call.tool_choice == expected
    assert asked.call.parallel_tool_calls is False
    assert asked.echo["tools"] == [TOOL]
    assert asked.echo["tool_choice"] == ("auto" if choice is None else choice)


def test_without_tools_none_is_called() -> None:
    assert read().call.tool_choice == "none"


@pytest.mark.parametrize(
    ("given", "kind", "value"),
    [
        ({"type": "json_object"}, "json_object", True),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "array"}},
            "json_schema",
            {"type": "array"},
        ),
    ],
)
def test_text_format(given: dict[str, Any], kind: str, value: Any) -> None:
    asked = read(text={"format": given})
    assert getattr(asked.call.sampling.structured_outputs, kind) == value
    assert asked.echo["text"] == {"format": given}
    assert read(text={"format": {"type": "text"}}).call.sampling.structured_outputs is None


@pytest.mark.parametrize(
    ("template", "effort", "kwargs"),
    [
        ("{{ reasoning_effort }}", "high", {"reasoning_effort": "high"}),
        ("{{ enable_thinking }}", "high", {"enable_thinking": True}),
        ("{{ enable_thinking }}", "none", {"enable_thinking": False}),
        ("", None, {}),
    ],
)
def test_reasoning_effort(template: str, effort: str | None, kwargs: dict[str, Any]) -> None:
    asked = read(template, reasoning={"effort": effort, "summary": "auto"})
    assert asked.call.template_kwargs == kwargs
    assert asked.echo["reasoning"] == {"effort": effort, "summary": None}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", "unsupported_parameter"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "unsupported_parameter"),
        ({"tools": [TOOL, TOOL]}, "tools", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}},
            "tool_choice.name",
            "invalid_value",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.type",
            "unsupported_parameter",
        ),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "invalid_value"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
        ({"n": 2}, "n", "unsupported_parameter"),
        *(({name: {}}, name, "unsupported_parameter") for name in RESPONSES_FIELDS.unsupported),
    ],
)
def test_refusals(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ParameterError) as error:
        read(**body)
    assert (error.value.param, error.value.code) == (param, code)


def test_unknown_parameters_may_be_ignored() -> None:
    asked = read(ignore=True, no_such_thing=1)
    assert asked.headers == {"x-ignored-parameters": "no_such_thing"}
