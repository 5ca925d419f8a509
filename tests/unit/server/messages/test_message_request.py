"""The body of a request to the Messages API as the call it asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edge_infer.server.messages.request import (
    MESSAGES_FIELDS,
    MessagesRequest,
    read_count_request,
    read_messages_request,
)
from edge_infer.server.parameter_error import ParameterError

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
ENABLED = {"type": "enabled", "budget_tokens": 1024}


def state(template: str = "", *, ignore: bool = False) -> Any:
    return SimpleNamespace(
        settings=SimpleNamespace(ignore_unknown_parameters=ignore),
        tokenizer=SimpleNamespace(chat_template=template),
        check_model=lambda _: None,
    )


def read(template: str = "", **body: Any) -> MessagesRequest:
    return read_messages_request(state(template), {"max_tokens": 9, "messages": HELLO, **body})


def test_sampling() -> None:
    sampling = read(temperature=0.5, top_p=0.25, top_k=3, stop_sequences=["a", "b"]).call.sampling
    assert sampling.max_tokens == 9
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.25, 3)
    assert list(sampling.stop) == ["a", "b"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tools_have_the_form_of_chat_completions(choice: Any, expected: Any) -> None:
    call = read(tools=[TOOL], tool_choice=choice).call
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert list(call.tools) == [{"type": "function", "function": function}]
    assert call.tool_choice == expected
    assert call.parallel_tool_calls is True


def test_parallel_calls_are_switched_off() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert read(tools=[TOOL], tool_choice=choice).call.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("template", "body", "kwargs"),
    [
        ("enable_thinking", {}, {}),
        ("enable_thinking", {"thinking": ENABLED}, {"enable_thinking": True}),
        ("enable_thinking", {"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ("enable_thinking", {"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ("always </think>", {"thinking": ENABLED}, {"enable_thinking": True}),
        ("", {"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (
            "reasoning_effort",
            {"output_config": {"effort": "high"}},
            {"reasoning_effort": "high"},
        ),
        ("", {"chat_template_kwargs": {"date": "today"}}, {"date": "today"}),
    ],
)
def test_thinking(template: str, body: dict[str, Any], kwargs: dict[str, Any]) -> None:
    assert read(template, **{"max_tokens": 2048, **body}).call.template_kwargs == kwargs


def test_a_model_that_always_reasons_cannot_be_told_not_to() -> None:
    with pytest.raises(ParameterError, match="always reasons") as error:
        read("a template with </think>", thinking={"type": "disabled"})
    assert error.value.code == "unsupported_parameter"


def test_output_format() -> None:
    schema = {"type": "array"}
    asked = read(output_config={"format": {"type": "json_schema", "schema": schema}})
    assert asked.call.sampling.structured_outputs is not None
    assert asked.call.sampling.structured_outputs.json_schema == schema


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"stop": "a"}, "stop", "unknown_parameter"),
        ({"thinking": ENABLED}, "thinking.budget_tokens", "invalid_value"),
        ({"thinking": {"type": "adaptive"}}, "thinking", "unsupported_parameter"),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            "thinking.display",
            "unsupported_parameter",
        ),
        ({"thinking": {"type": "between_tools"}}, "thinking.type", "unsupported_parameter"),
        (
            {"output_config": {"effort": "low"}},
            "output_config.effort",
            "unsupported_parameter",
        ),
        ({"tools": [TOOL, TOOL]}, "tools", "invalid_value"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "sub"}},
            "tool_choice.name",
            "invalid_value",
        ),
        *(({name: {}}, name, "unsupported_parameter") for name in MESSAGES_FIELDS.unsupported),
    ],
)
def test_refusals(body: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(ParameterError) as error:
        read(**body)
    assert (error.value.param, error.value.code) == (param, code)


def test_counting_takes_what_makes_the_prompt() -> None:
    body = {"messages": HELLO, "system": "Be brief.", "tools": [TOOL], "no_such_thing": 1}
    call, headers = read_count_request(state(ignore=True), body)
    assert [message["role"] for message in call.messages] == ["system", "user"]
    assert len(call.tools) == 1
    assert headers == {"x-ignored-parameters": "no_such_thing"}
    with pytest.raises(ParameterError, match="max_tokens"):
        read_count_request(state(), {"messages": HELLO, "max_tokens": 3})
