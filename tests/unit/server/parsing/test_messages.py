"""Messages of the API as templates want them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.server.conftest import HERMES, LLAMA3, SPARK, MakeTokenizer

from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.parsing.messages import messages_for_template

CALL = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "Hm.",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "é"]}'}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "1", "content": "one"},
    {"role": "tool", "tool_call_id": "unknown", "content": [{"type": "text", "text": "two"}]},
]
TOOL = {"type": "function", "function": {"name": "f", "description": "does {it}"}}


def test_arguments_become_objects_and_parts_text() -> None:
    assistant, _, result = messages_for_template([CALL, *RESULTS], HERMES)
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [
        {"a": [1, "é"]},
        {},
    ]
    assert assistant["content"] == ""
    assert assistant["reasoning_content"] == "Hm."
    assert result == {"role": "tool", "tool_call_id": "unknown", "content": "two"}
    assert CALL["tool_calls"][0]["function"]["arguments"] == '{"a": [1, "é"]}'  # type: ignore[index]


def test_parts_are_lines_and_refusals_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    (message,) = messages_for_template([{"role": "assistant", "content": parts}], HERMES)
    assert message["content"] == "a\nb"


def test_no_calls_are_no_tool_calls() -> None:
    message = {"role": "assistant", "content": "a", "tool_calls": []}
    assert messages_for_template([message], HERMES) == [{"role": "assistant", "content": "a"}]


def test_developer_is_system_where_the_template_knows_no_other() -> None:
    message = {"role": "developer", "content": "a"}
    assert messages_for_template([message], HERMES)[0]["role"] == "system"
    knowing = HERMES + "{# developer #}"
    assert messages_for_template([message], knowing)[0]["role"] == "developer"


def test_tools_for_a_template_that_knows_none() -> None:
    system = {"role": "system", "content": "Be brief."}
    messages = [system, {"role": "user", "content": "?"}, CALL, *RESULTS]
    told, user, assistant, results = messages_for_template(
        messages, "", tools=[TOOL], knows_tools=False
    )
    assert told["role"] == "system"
    assert told["content"].startswith("Be brief.\n\n")
    assert (
        '{"type": "function", "function": {"name": "f", "description": "does {it}"}}'
        in (told["content"])
    )
    assert user == messages[1]
    assert assistant["content"] == (
        '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
    )
    assert "tool_calls" not in assistant
    assert results == {
        "role": "user",
        "content": "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>",
    }
    (first, *_) = messages_for_template(messages[1:], "", tools=[TOOL], knows_tools=False)
    assert first["role"] == "system"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
        *(
            (
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
                },
                "messages[1].tool_calls[0].function.arguments",
            )
            for arguments in ("{", "[1]", '{"a": NaN}', "1", '{"a": "\ud800"}', "[" * 100_000)
        ),
    ],
)
def test_a_refusal_names_the_field(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterError) as error:
        messages_for_template([{"role": "user", "content": "a"}, message], HERMES)
    assert error.value.param == param
    assert str(error.value).startswith(param)


@pytest.mark.parametrize("template", [HERMES, LLAMA3, SPARK])
def test_templates_take_them(make_tokenizer: MakeTokenizer, template: str) -> None:
    messages = messages_for_template([{"role": "user", "content": "?"}, CALL, *RESULTS], template)
    text = make_tokenizer(template).apply_chat_template(messages, [TOOL])
    assert "two" in text
    assert "é" in text
