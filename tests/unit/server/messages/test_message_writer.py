"""The events of an answer as a message's stream events."""

from __future__ import annotations

from typing import Any

import pytest

from edge_infer.server.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.messages.answer import MessageWriter, message_usage

USAGE = message_usage(10, 20, 4, 5)
CALLS: list[Event] = [
    ReasoningDelta("Hm"),
    ReasoningDelta("."),
    ContentDelta("I add."),
    ToolCallStart(0, "call_1", "add"),
    ToolCallArguments(0, '{"a":'),
    ToolCallArguments(0, " 1}"),
    ToolCallStart(1, "call_2", "stop"),
    Finished("tool_calls", 20, 5),
]


def write(*events: Event) -> tuple[MessageWriter, list[dict[str, Any]]]:
    writer = MessageWriter("m")
    written = writer.start(USAGE)
    for event in events:
        written.extend(writer.take(event))
    return writer, written


def test_every_block_is_started_filled_and_stopped() -> None:
    writer, events = write(*CALLS)
    events.extend(writer.finish(USAGE))
    kinds = [(event["type"], event.get("index")) for event in events]
    assert kinds == [
        *(("message_start", None), ("ping", None)),
        *(("content_block_start", 0), ("content_block_delta", 0), ("content_block_delta", 0)),
        *(("content_block_stop", 0), ("content_block_start", 1), ("content_block_delta", 1)),
        *(("content_block_stop", 1), ("content_block_start", 2), ("content_block_delta", 2)),
        *(("content_block_delta", 2), ("content_block_stop", 2), ("content_block_start", 3)),
        *(("content_block_stop", 3), ("message_delta", None), ("message_stop", None)),
    ]
    starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "call_1", "name": "add", "input": {}},
        {"type": "tool_use", "id": "call_2", "name": "stop", "input": {}},
    ]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "thinking_delta", "thinking": "Hm"}
    assert deltas[2] == {"type": "text_delta", "text": "I add."}
    assert deltas[3] == {"type": "input_json_delta", "partial_json": '{"a":'}
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"] == USAGE


def test_the_whole_message() -> None:
    writer, _ = write(*CALLS)
    message = writer.message(USAGE)
    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I add."},
        {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "call_2", "name": "stop", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == USAGE


def test_a_call_that_is_cut_is_left_out() -> None:
    writer, _ = write(
        ToolCallStart(0, "call_1", "add"),
        ToolCallArguments(0, '{"a":'),
        Finished("length", 5),
    )
    message = writer.message(USAGE)
    assert message["content"] == []
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (Finished("stop", 1), "end_turn", None),
        (Finished("stop", 1, stop="END"), "stop_sequence", "END"),
        (Finished("length", 1), "max_tokens", None),
        (Finished("tool_calls", 1), "tool_use", None),
    ],
)
def test_stop_reasons(end: Finished, reason: str, sequence: str | None) -> None:
    writer, _ = write(end)
    message = writer.message(USAGE)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert message["content"] == []


def test_input_tokens_are_those_not_read_from_the_cache() -> None:
    assert USAGE["input_tokens"] == 6
    assert USAGE["cache_read_input_tokens"] == 4
    assert USAGE["output_tokens_details"] == {"thinking_tokens": 5}
