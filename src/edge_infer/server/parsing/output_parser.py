"""A model's text as it comes, told apart: reasoning, content, tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from edge_infer.server.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.parsing.json_call import JsonCall
from edge_infer.server.parsing.json_scanner import JsonFault
from edge_infer.server.parsing.output_format import PYTHON_TAG, TOOL_CALL, OutputFormat
from edge_infer.server.parsing.spark_call import SparkCall, begun

CALL, CALL_END = TOOL_CALL


class OutputParser:
    """Turns the text of one answer into events; however it is cut, they say the same.

    Text that may be the beginning of a marker or a call is kept until that is clear. What turns
    out to be no call of one of the tools is content, as it was written.

    tools: the tools' names and their parameters' schemas; without any, calls are content too.
    max_calls: what follows the last of so many calls is left out.

    in_reasoning: whether the text so far ends inside the reasoning.
    calls: how many calls have begun.
    """

    def __init__(
        self,
        form: OutputFormat,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        max_calls: int | None = None,
    ) -> None:
        self._form = form
        self._tools = dict(tools or {})
        self._max_calls = max_calls
        self._buffer = ""  # not understood yet
        self._raw = ""  # before the buffer, and content unless it belongs to a call
        self._events: list[Event] = []
        self._json: JsonCall | None = None
        self._spark: SparkCall | None = None
        self._space_matters = True  # whether white space before the next text belongs to it
        self._final = False
        self.calls = 0
        self.in_reasoning = form.reasoning is not None and form.reasoning_opened
        # Consumes some of the buffer; returns False when it needs more text for that.
        self._state: Callable[[], bool] = self._answer
        if form.reasoning is not None:
            self._state = self._reasoning if self.in_reasoning else self._opening
            self._space_matters = not self.in_reasoning

    def push(self, text: str) -> list[Event]:
        """The events that are certain with this text."""
        self._buffer += text
        while (self._buffer or (self._final and self._raw)) and self._state():
            pass
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """The events of what was kept, at the end of the text."""
        self._final = True
        return self.push("")

    def _emit(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        match last, event:
            case ContentDelta(before), ContentDelta(text):
                self._events[-1] = ContentDelta(before + text)
            case ToolCallArguments(index, before), ToolCallArguments(_, text):
                self._events[-1] = ToolCallArguments(index, before + text)
            case _:
                self._events.append(event)

    def _give_content(self, text: str) -> None:
        if text:
            self._emit(ContentDelta(text))

    def _give_arguments(self, text: str) -> None:
        if text:
            self._emit(ToolCallArguments(self.calls - 1, text))

    def _start_call(self, name: str) -> None:
        self._raw = ""
        self._emit(ToolCallStart(self.calls, f"call_{secrets.token_hex(12)}", name))
        self.calls += 1

    def _skip_space(self) -> bool:
        """Whether there is text left once the white space that does not matter is gone."""
        if not self._space_matters:
            self._buffer = self._buffer.lstrip()
            self._space_matters = bool(self._buffer)
        return bool(self._buffer)

    def _may_become(self, text: str, marker: str) -> bool:
        """Whether `text`, which is not the whole marker, can become it with more text."""
        return not self._final and marker.startswith(text)

    # reasoning

    def _opening(self) -> bool:
        """The beginning of an answer that may begin with reasoning."""
        assert self._form.reasoning is not None
        marker = self._form.reasoning[0]
        text = self._buffer.lstrip()
        if text.startswith(marker):
            self._buffer = text[len(marker) :]
            self._space_matters = False
            self.in_reasoning = True
            self._state = self._reasoning
            return True
        if self._may_become(text, marker):
            return False
        self._state = self._answer
        return True

    def _reasoning(self) -> bool:
        assert self._form.reasoning is not None
        marker = self._form.reasoning[1]
        if not self._skip_space():
            return False
        end = self._buffer.find(marker)
        kept = end if end >= 0 else len(self._buffer) - self._kept(marker)
        text = self._buffer[:kept].rstrip() if end >= 0 else self._buffer[:kept]
        if text:
            self._emit(ReasoningDelta(text))
        if end < 0:
            self._buffer = self._buffer[kept:]
            return False
        self._buffer = self._buffer[end + len(marker) :]
        self._space_matters = False
        self.in_reasoning = False
        self._state = self._answer
        return True

    def _kept(self, marker: str) -> int:
        """Characters at the buffer's end that may begin a marker, or be white space before one."""
        if self._final:
            return 0
        text = self._buffer
        return len(text) - len(text[: len(text) - begun(text, marker)].rstrip())

    # content

    def _answer(self) -> bool:
        """The beginning of the answer, behind any reasoning."""
        if not self._skip_space():
            return False
        if self._tools and self._form.call_format == "llama3":
            text = self._buffer.lstrip()
            if not text or self._may_become(text, PYTHON_TAG):
                return self._final and self._to(self._plain)
            tag = PYTHON_TAG if text.startswith(PYTHON_TAG) else ""
            called = text[len(tag) :].lstrip()
            if tag and not called and not self._final:
                return False
            if called.startswith("{"):
                return self._begin_json(len(self._buffer) - len(called))
            return self._to(self._plain)
        return self._to(self._content if self._tools else self._plain)

    def _to(self, state: Callable[[], bool]) -> bool:
        self._state = state
        return True

    def _plain(self) -> bool:
        """Content in which nothing is a call."""
        if self._skip_space():
            self._give_content(self._buffer)
            self._buffer = ""
        return False

    def _content(self) -> bool:
        if not self._skip_space():
            return False
        start = self._buffer.find(CALL)
        if start < 0:
            kept = len(self._buffer) - self._kept(CALL)
            self._give_content(self._buffer[:kept])
            self._buffer = self._buffer[kept:]
            return False
        before = self._buffer[:start].rstrip()
        self._give_content(before)
        self._buffer = self._buffer[len(before) :]
        length = start + len(CALL) - len(before)
        if self._form.call_format == "hermes":
            return self._begin_json(length)
        self._raw, self._buffer = self._buffer[:length], self._buffer[length:]
        self._spark = SparkCall(self._tools)
        return self._to(self._spark_call)

    def _no_call(self, state: Callable[[], bool]) -> bool:
        """What was kept as a call is content."""
        self._give_content(self._raw)
        self._raw = ""
        return self._to(state)

    def _after_call(self) -> bool:
        """Behind a call, whose own end may still come."""
        if self._max_calls is not None and self.calls >= self._max_calls:
            self._buffer = ""
            return False
        self._space_matters = False
        if not self._skip_space():
            return False
        if self._form.call_format == "llama3":
            return self._next_json()
        if self._buffer.startswith(CALL_END):
            self._buffer = self._buffer[len(CALL_END) :]
            self._space_matters = False
            return self._to(self._content)
        return not self._may_become(self._buffer, CALL_END) and self._to(self._content)

    # calls in JSON

    def _begin_json(self, length: int) -> bool:
        """The first `length` characters of the buffer come before a call's object."""
        self._raw, self._buffer = self._buffer[:length], self._buffer[length:]
        self._json = JsonCall(self._tools)
        return self._to(self._json_call)

    def _next_json(self) -> bool:
        """Another object behind the first."""
        rest = self._buffer.removeprefix(";").lstrip()
        if not rest and not self._final:
            return False
        if rest.startswith("{"):
            return self._begin_json(len(self._buffer) - len(rest))
        return self._to(self._plain)

    def _json_call(self) -> bool:
        call, given = self._json, []
        assert call is not None
        used, fault = 0, False
        for character in self._buffer:
            started = call.started
            try:
                text = call.push(character)
            except JsonFault:
                fault = True
                break
            used += 1
            if call.started and not started:
                assert call.name is not None
                self._start_call(call.name)
            given.append(text)
            if call.complete:
                break
        taken, self._buffer = self._buffer[:used], self._buffer[used:]
        if call.started:
            self._give_arguments("".join(given))
            if fault:
                return self._to(self._broken)
            return call.complete and self._to(self._after_call)
        self._raw += taken
        if fault or self._final:
            llama3 = self._form.call_format == "llama3"
            return self._no_call(self._plain if llama3 else self._content)
        return False

    def _broken(self) -> bool:
        """Arguments that have stopped being JSON: given as they are."""
        marker = CALL_END if self._form.call_format == "hermes" else None
        end = self._buffer.find(marker) if marker else -1
        if marker is None or end < 0:
            kept = len(self._buffer) - (self._kept(marker) if marker else 0)
            self._give_arguments(self._buffer[:kept])
            self._buffer = self._buffer[kept:]
            return False
        self._give_arguments(self._buffer[:end].rstrip())
        self._buffer = self._buffer[end:]
        return self._to(self._after_call)

    # calls in Spark's notation

    def _spark_call(self) -> bool:
        call, text = self._spark, self._buffer
        assert call is not None
        started = call.started
        given, self._buffer = call.take(text, final=self._final)
        if call.started:
            if not started:
                assert call.name is not None
                self._start_call(call.name)
            self._give_arguments(given)
            if call.failed and not self._final:
                self._give_arguments("}")
                return self._to(self._after_call)
            return call.complete and self._to(self._after_call)
        self._raw += text[: len(text) - len(self._buffer)]
        if call.failed or self._final:
            return self._no_call(self._content)
        return False
