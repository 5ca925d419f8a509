"""Items of a response's input as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from edge_infer.server.fields import Array
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.responses.input_items import ITEM, messages_of_input

CALL = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "2"}


def messages(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return messages_of_input(Array(ITEM).parse(list(items), "input"), instructions)


def test_a_string_is_the_users_message() -> None:
    assert messages_of_input("Hello", "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_system_messages_at_the_beginning_are_one() -> None:
    assert messages(
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "Later."},
        instructions="Be brief.",
    ) == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "Later."},
    ]


def test_what_the_assistant_did_is_one_message() -> None:
    asked = {"type": "message", "role": "user", "content": "1 + 1?"}
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "not read"}],
        "content": [{"type": "reasoning_text", "text": "Adding."}],
        "encrypted_content": None,
    }
    said = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I add.", "annotations": [], "logprobs": []}],
    }
    assert messages(asked, reasoning, said, CALL, {**CALL, "call_id": "call_2"}, OUTPUT) == [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "reasoning_content": "Adding.",
            "content": "I add.",
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1}'},
                }
                for call_id in ("call_1", "call_2")
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "2"},
    ]


def test_what_comes_after_a_text_or_a_call_is_another_message() -> None:
    said = {"role": "assistant", "content": "a"}
    assert [m["content"] for m in messages(said, {**said, "content": "b"})] == ["a", "b"]
    found = messages(CALL, said)
    assert ["tool_calls" in message for message in found] == [True, False]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    assert [m.get("reasoning_content") for m in messages(CALL, thought)] == [None, "Hm."]
    assert messages(thought, thought)[0]["reasoning_content"] == "Hm.\nHm."


def test_parts_are_lines() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert messages({"role": "user", "content": parts})[0]["content"] == "a\nb"
    assert messages(CALL, {**OUTPUT, "output": parts})[1]["content"] == "a\nb"
    refusal = [{"type": "refusal", "refusal": "No."}]
    assert messages({"role": "assistant", "content": refusal})[0]["content"] == "No."


@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ([OUTPUT], "input[0].call_id", "invalid_value"),
        ([{**CALL, "arguments": "{"}], "input[0].arguments", "invalid_value"),
        ([{**CALL, "arguments": "[1]"}], "input[0].arguments", "invalid_value"),
        ([{**CALL, "namespace": "x"}], "input[0].namespace", "unsupported_parameter"),
        ([{"type": "mcp_call"}], "input[0].type", "unsupported_parameter"),
        ([{"type": "song"}], "input[0].type", "invalid_value"),
        ([{"type": 1}], "input[0].type", "invalid_type"),
        (["Hello"], "input[0]", "invalid_type"),
        ([{"role": "user", "content": [{}]}], "input[0].content[0].type", "missing_required"),
        ([{"role": "user", "text": "x"}], "input[0].text", "unknown_parameter"),
        (
            [{"type": "reasoning", "encrypted_content": "x"}],
            "input[0].encrypted_content",
            "unsupported_parameter",
        ),
    ],
)
def test_refusals(items: list[Any], param: str, code: str) -> None:
    with pytest.raises(ParameterError) as error:
        messages(*items)
    assert error.value.param == param
    assert error.value.code.startswith(code)
    assert param in str(error.value)
