"""The events of an answer as a response's stream events."""

from __future__ import annotations

from typing import Any

import pytest

from edge_infer.engine.errors import EngineError
from edge_infer.engine.sampler import Sampled
from edge_infer.server.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.responses.answer import ResponseWriter, response_usage

CALLS: list[Event] = [
    ReasoningDelta("Hm"),
    ReasoningDelta("."),
    ContentDelta("I add."),
    ToolCallStart(0, "call_1", "add"),
    ToolCallArguments(0, '{"a":'),
    ToolCallArguments(0, " 1}"),
    ToolCallStart(1, "call_2", "stop"),
    ToolCallArguments(1, "{}"),
    Finished("tool_calls", 20, 5),
]


class Letters:
    """A tokenizer whose ids are characters."""

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()


def write(*events: Event) -> tuple[ResponseWriter, list[dict[str, Any]]]:
    writer = ResponseWriter("m", Letters(), {"metadata": {"a": "b"}})  # type: ignore[arg-type]
    written = writer.start()
    for event in events:
        written.extend(writer.take(event))
    return writer, written


def finished(*events: Event) -> list[dict[str, Any]]:
    writer, written = write(*events)
    return [*written, writer.finish(response_usage(10, 20, 4, 5))]


def test_every_item_is_added_filled_and_done() -> None:
    events = finished(*CALLS)
    text = ["response.output_item.added", "response.content_part.added"]
    text_done = ["response.content_part.done", "response.output_item.done"]
    assert [event["type"] for event in events] == [
        *("response.created", "response.in_progress"),
        *(*text, "response.reasoning_text.delta", "response.reasoning_text.delta"),
        *("response.reasoning_text.done", *text_done),
        *(*text, "response.output_text.delta", "response.output_text.done", *text_done),
        *("response.output_item.added", "response.function_call_arguments.delta"),
        *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        *("response.output_item.done", "response.output_item.added"),
        *("response.function_call_arguments.delta", "response.function_call_arguments.done"),
        *("response.output_item.done", "response.completed"),
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_the_last_event_has_all_items_as_they_were_done() -> None:
    events = finished(*CALLS)
    response = events[-1]["response"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert response["output"] == [event["item"] for event in done]
    assert [event["output_index"] for event in done] == [0, 1, 2, 3]
    reasoning, message, call, other = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert reasoning["summary"] == []
    (part,) = message["content"]
    assert part == {"type": "output_text", "text": "I add.", "annotations": [], "logprobs": []}
    assert (call["call_id"], call["name"], call["arguments"]) == ("call_1", "add", '{"a": 1}')
    assert (other["call_id"], other["arguments"]) == ("call_2", "{}")
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["metadata"] == {"a": "b"}
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
    assert response["usage"]["total_tokens"] == 30


def test_deltas_name_the_item_they_belong_to() -> None:
    events = finished(*CALLS)
    added: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["item"]["status"] == "in_progress"
            added[event["item"]["id"]] = event["item"]["type"]
        elif event["type"] == "response.function_call_arguments.delta":
            assert added[event["item_id"]] == "function_call"
        elif event["type"] == "response.output_text.delta":
            assert added[event["item_id"]] == "message"
    assert list(added.values()) == ["reasoning", "message", "function_call", "function_call"]


def test_an_empty_answer_is_an_empty_message() -> None:
    response = finished(Finished("stop", 1))[-1]["response"]
    (message,) = response["output"]
    assert message["content"][0]["text"] == ""
    assert response["status"] == "completed"
    assert response["completed_at"] >= response["created_at"]


def test_an_answer_that_is_cut_says_so() -> None:
    events = finished(ReasoningDelta("Hm"), Finished("length", 1, 1))
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["completed_at"] is None


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EngineError("it broke"), "server_error", "it broke"),
        (OSError("/etc/secret"), "server_error", "the server failed; its log says where"),
    ],
)
def test_an_answer_that_fails_keeps_what_there_was(
    error: Exception, code: str, message: str
) -> None:
    writer, written = write(ContentDelta("I"))
    event = writer.fail(error)
    assert event["type"] == "response.failed"
    assert event["sequence_number"] == len(written)
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"] == {"code": code, "message": message}
    assert event["response"]["output"][0]["status"] == "in_progress"


def test_logprobs_are_those_of_the_text() -> None:
    def sampled(text: str) -> TokenLogprobs:
        return TokenLogprobs([Sampled(ord(letter), -1.0, ((65, -2.0),)) for letter in text])

    events = finished(
        *(sampled("r"), ReasoningDelta("r")),
        *(sampled("a"), ContentDelta("a")),
        *(sampled("b"), sampled("c"), ContentDelta("bc")),
        *(sampled("d"), Finished("stop", 5)),
    )
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    tokens = [[item["token"] for item in event["logprobs"]] for event in deltas]
    assert tokens == [["a"], ["b", "c"]]
    part = events[-1]["response"]["output"][1]["content"][0]
    assert [item["token"] for item in part["logprobs"]] == ["a", "b", "c", "d"]
    assert part["logprobs"][0]["top_logprobs"] == [{"token": "A", "logprob": -2.0, "bytes": [65]}]
