"""Anthropic's messages as chat messages."""

from __future__ import annotations

from typing import Any

import pytest

from edge_infer.server.messages.content import MESSAGES, SYSTEM, chat_messages
from edge_infer.server.parameter_error import ParameterError

CALL = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": "é"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}


def messages(*given: tuple[str, Any], system: Any = "") -> list[dict[str, Any]]:
    turns = [{"role": role, "content": content} for role, content in given]
    return chat_messages(SYSTEM.parse(system, "system"), MESSAGES.parse(turns, "messages"))


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def test_blocks_are_lines_and_turns_of_one_role_are_one() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    assert messages(
        ("user", [text("a"), text("b", **cached)]),
        ("user", "c"),
        ("assistant", "d"),
        ("system", "e"),
        ("user", "f"),
        system=[text("s", **cached), text("t")],
    ) == [
        {"role": "system", "content": "s\nt"},
        {"role": "user", "content": "a\nb\nc"},
        {"role": "assistant", "content": "d"},
        {"role": "system", "content": "e"},
        {"role": "user", "content": "f"},
    ]


def test_calls_and_their_results() -> None:
    thinking = {"type": "thinking", "thinking": "Adding.", "signature": ""}
    failed = {**RESULT, "tool_use_id": "toolu_2", "is_error": True, "content": [text("no")]}
    assert messages(
        ("user", "1 + 1?"),
        ("assistant", [thinking, text("I add."), CALL, {**CALL, "id": "toolu_2"}]),
        ("user", [RESULT, failed, text("And?")]),
    ) == [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "Adding.",
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": "é"}'},
                }
                for call_id in ("toolu_1", "toolu_2")
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "name": "add", "content": "2"},
        {"role": "tool", "tool_call_id": "toolu_2", "name": "add", "content": "Error: no"},
        {"role": "user", "content": "And?"},
    ]


def test_a_result_may_be_empty() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1"}
    assert messages(("assistant", [CALL]), ("user", [result]))[-1]["content"] == ""


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ([("user", [RESULT])], "messages[0].content[0].tool_use_id", "invalid_value"),
        ([("user", [CALL])], "messages[0].content[0].type", "invalid_value"),
        ([("assistant", [RESULT])], "messages[0].content[0].type", "invalid_value"),
        ([("user", "a"), ("assistant", "b")], "messages[1].role", "invalid_value"),
        ([("user", [])], "messages[0].content", "invalid_value"),
        ([("user", [{"type": "image"}])], "messages[0].content[0].type", "unsupported_parameter"),
        ([("user", [{"type": "song"}])], "messages[0].content[0].type", "invalid_value"),
        ([("user", [text("a", size=1)])], "messages[0].content[0].size", "unknown_parameter"),
        (
            [("assistant", [CALL]), ("user", [{**RESULT, "content": [{"type": "document"}]}])],
            "messages[1].content[0].content[0].type",
            "unsupported_parameter",
        ),
    ],
)
def test_refusals(given: list[tuple[str, Any]], param: str, code: str) -> None:
    with pytest.raises(ParameterError) as error:
        messages(*given)
    assert error.value.param == param
    assert error.value.code == code
    assert param in str(error.value)
