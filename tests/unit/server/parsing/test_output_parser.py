"""Reasoning, content and calls told apart, however the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_infer.server.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.parsing.output_format import OutputFormat
from edge_infer.server.parsing.output_parser import OutputParser

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "zip": {"type": ["string", "integer"]},
            "where": {"$ref": "#/$defs/point"},
        },
        "$defs": {"point": {"type": "array", "items": {"type": "number"}}},
    },
    "now": {"type": "object", "properties": {}},
}
THINK = ("<think>", "</think>")
HERMES = OutputFormat("hermes")
LLAMA3 = OutputFormat("llama3")
SPARK = OutputFormat("spark")
Said = tuple[str, str, list[tuple[str, str]]]  # reasoning, content, calls


def said(events: list[Event]) -> Said:
    reasoning, content = "", ""
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                reasoning += text
            case ContentDelta(text):
                content += text
            case ToolCallStart(index, _, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ToolCallArguments(index, text):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return reasoning, content, calls


def parse(form: OutputFormat, *pieces: str, max_calls: int | None = None) -> Said:
    parser = OutputParser(form, TOOLS, max_calls=max_calls)
    events = [event for piece in pieces for event in parser.push(piece)]
    return said(events + parser.finish())


def hermes(arguments: str, name: str = "weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


PARIS = '{"city": "Paris", "days": 2}'
# format, text, what it says
CASES: list[tuple[OutputFormat, str, Said]] = [
    (HERMES, "Hello\nthere. ", ("", "Hello\nthere. ", [])),
    (HERMES, hermes(PARIS), ("", "", [("weather", PARIS)])),
    (HERMES, f"Let me see.\n{hermes(PARIS)}\n", ("", "Let me see.", [("weather", PARIS)])),
    (
        HERMES,
        f"{hermes(PARIS)}\n{hermes('{}', 'now')}",
        ("", "", [("weather", PARIS), ("now", "{}")]),
    ),
    (HERMES, f"{hermes(PARIS)} Done.", ("", "Done.", [("weather", PARIS)])),
    (
        HERMES,
        '<tool_call>{"arguments": {"city": "x<tool_call>"}, "name": "weather"}</tool_call>',
        ("", "", [("weather", '{"city": "x<tool_call>"}')]),
    ),
    (HERMES, '<tool_call>{"name": "now"}</tool_call>', ("", "", [("now", "{}")])),
    (
        HERMES,
        '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}',
        ("", "", [("now", '{"a": 1}')]),
    ),
    # no calls
    (HERMES, hermes(PARIS, "rain"), ("", hermes(PARIS, "rain"), [])),
    (HERMES, hermes("[1]"), ("", hermes("[1]"), [])),
    (HERMES, "<tool_call>\n{name: 1}", ("", "<tool_call>\n{name: 1}", [])),
    (HERMES, '<tool_call>{"name": "wea', ("", '<tool_call>{"name": "wea', [])),
    (HERMES, "a <tool_call", ("", "a <tool_call", [])),
    (HERMES, "<tool_call>", ("", "<tool_call>", [])),
    (
        HERMES,
        f"<tool_call> \n{hermes(PARIS)}",
        ("", "<tool_call> \n", [("weather", PARIS)]),
    ),
    # broken off, and broken
    (
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"city": "Pa',
        ("", "", [("weather", '{"city": "Pa')]),
    ),
    (
        HERMES,
        hermes('{"city": Paris}') + " Hm.",
        ("", "Hm.", [("weather", '{"city": Paris}}')]),
    ),
    # reasoning
    (
        OutputFormat("hermes", THINK),
        f"\n<think>\nIs <tool_call> a < b?\n</think>\n\nYes\n{hermes(PARIS)}",
        ("Is <tool_call> a < b?", "Yes", [("weather", PARIS)]),
    ),
    (OutputFormat("hermes", THINK), " <thin air", ("", " <thin air", [])),
    (OutputFormat("hermes", THINK), "<thi", ("", "<thi", [])),
    (OutputFormat("hermes", THINK, True), "\nSo.\n</think> Yes", ("So.", "Yes", [])),
    (OutputFormat("hermes", THINK, True), "So and so </thin", ("So and so </thin", "", [])),
    (OutputFormat("llama3", THINK, True), "</think>\n\n", ("", "", [])),
    (
        OutputFormat("llama3", THINK, True),
        '.</think>\n{"name": "now", "parameters": {}}',
        (".", "", [("now", "{}")]),
    ),
    # Llama 3
    (LLAMA3, f'{{"name": "weather", "parameters": {PARIS}}}', ("", "", [("weather", PARIS)])),
    (
        LLAMA3,
        f'\n<|python_tag|> {{"name": "weather", "parameters": {PARIS}}}; '
        '{"name": "now", "parameters": {}}\n',
        ("", "", [("weather", PARIS), ("now", "{}")]),
    ),
    (LLAMA3, 'Say {"name": "now"}', ("", 'Say {"name": "now"}', [])),
    (LLAMA3, '{"a": {"name": "now"}} ', ("", '{"a": {"name": "now"}} ', [])),
    (LLAMA3, "<|python_tag|>now()", ("", "<|python_tag|>now()", [])),
    (LLAMA3, "<|python_tag|>", ("", "<|python_tag|>", [])),
    (LLAMA3, '{"name": "now", "parameters": {}} ok', ("", "ok", [("now", "{}")])),
    (
        LLAMA3,
        '{"name": "now", "parameters": {"a": b}}',
        ("", "", [("now", '{"a": b}}')]),
    ),
    # Spark
    (SPARK, "<tool_call>now</tool_call>", ("", "", [("now", "{}")])),
    (
        SPARK,
        'Well.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa"r<i>s\n</arg_value>\n'
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>\n<tool_call>now</tool_call>",
        ("", "Well.", [("weather", '{"city": "Pa\\"r<i>s\\n", "days": 2}'), ("now", "{}")]),
    ),
    (
        SPARK,
        "<tool_call>weather<arg_key>city</arg_key><arg_value>12</arg_value>"
        "<arg_key>unit</arg_key><arg_value>C</arg_value>"
        "<arg_key>zip</arg_key><arg_value>07</arg_value>"
        "<arg_key>where</arg_key><arg_value> [1.5, 2] </arg_value>"
        "<arg_key>new</arg_key><arg_value>null</arg_value></tool_call>",
        (
            "",
            "",
            [
                (
                    "weather",
                    '{"city": "12", "unit": "C", "zip": "07", "where": [1.5, 2], "new": null}',
                )
            ],
        ),
    ),
    (SPARK, "<tool_call>rain</tool_call>", ("", "<tool_call>rain</tool_call>", [])),
    (SPARK, "<tool_call>now<b>", ("", "<tool_call>now<b>", [])),
    (SPARK, "<tool_call>now", ("", "<tool_call>now", [])),
    (
        SPARK,
        "<tool_call>weather<arg_key>city</arg_k",
        ("", "<tool_call>weather<arg_key>city</arg_k", []),
    ),
    (
        SPARK,
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Par",
        ("", "", [("weather", '{"city": "Par')]),
    ),
    (
        SPARK,
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value> and so on",
        ("", "and so on", [("weather", '{"city": "Paris"}')]),
    ),
]
IDS = [f"{case[0].tool_calls}-{index}" for index, case in enumerate(CASES)]


@pytest.mark.parametrize(("form", "text", "expected"), CASES, ids=IDS)
def test_what_a_text_says(form: OutputFormat, text: str, expected: Said) -> None:
    assert parse(form, text) == expected
    assert parse(form, *text) == expected  # character by character


PIECES = [piece for _, text, _ in CASES for piece in (text, text[: len(text) // 2])] + [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "</arg_value>", "<|"),
    *(
        '{"name": "now", ',
        '"arguments": {',
        '"parameters"',
        "}",
        "\n",
        " ",
        ";",
        "é🙂",
        "\\u12",
        "<",
    ),
]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_the_cut_does_not_matter(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=4)))
    form = OutputFormat(
        data.draw(st.sampled_from(["hermes", "llama3", "spark"])),
        *data.draw(st.sampled_from([(None, False), (THINK, False), (THINK, True)])),
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse(form, text)
    assert parse(form, *pieces) == whole
    assert parse(form, *text) == whole


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from('<tool_cal>{"name":w}\\ \n;/thinkrg'), max_size=60))
def test_text_without_calls_is_kept(text: str) -> None:
    for form in (HERMES, LLAMA3, SPARK):
        assert parse(form, text) == ("", text, [])


def test_arguments_stream() -> None:
    parser = OutputParser(HERMES, TOOLS)
    (start,) = parser.push('<tool_call>{"name": "weather", "arguments": {')[:1]
    assert isinstance(start, ToolCallStart)
    assert start.id.startswith("call_")
    assert parser.push('"city": "Par') == [ToolCallArguments(0, '"city": "Par')]
    assert parser.push('is"}}</tool') == [ToolCallArguments(0, 'is"}')]
    assert parser.push("_call>") == parser.finish() == []


def test_ids_differ() -> None:
    parser = OutputParser(HERMES, TOOLS)
    events = parser.push(hermes(PARIS) * 3) + parser.finish()
    assert len({event.id for event in events if isinstance(event, ToolCallStart)}) == 3


def test_what_follows_the_last_call_is_left_out() -> None:
    assert parse(HERMES, hermes(PARIS) * 3 + "Done", max_calls=1) == (
        "",
        "",
        [("weather", PARIS)],
    )


def test_without_tools_a_call_is_content() -> None:
    parser = OutputParser(OutputFormat("hermes", THINK, True))
    text = f"hm</think>{hermes(PARIS)} \n"
    assert said(parser.push(text) + parser.finish()) == ("hm", f"{hermes(PARIS)} \n", [])


def test_control_characters_in_arguments_are_escaped() -> None:
    _, _, ((_, arguments),) = parse(HERMES, hermes('{"city": "a\nb\tc"}'))
    assert json.loads(arguments) == {"city": "a\nb\tc"}


def test_reading_takes_time_in_proportion_to_the_text() -> None:
    """Markers in strings that never end would make reading again what was read quadratic."""
    text = '<tool_call>{"a": "' * 4000
    assert parse(HERMES, text)[1] == text


def test_in_reasoning() -> None:
    parser = OutputParser(OutputFormat("hermes", THINK))
    assert not parser.in_reasoning
    for text, inside in (("<think>", True), ("a", True), ("b</think>", False)):
        parser.push(text)
        assert parser.in_reasoning is inside
