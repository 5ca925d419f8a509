"""The events of a chat as a response: its typed stream events, and the whole."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from edge_infer.server.errors import as_api_error
from edge_infer.server.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
)
from edge_infer.server.openai_words import chat_logprobs
from edge_infer.text.tokenizer import Tokenizer

Json = dict[str, Any]

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class ResponseWriter:
    """Turns the events of one answer into a response's stream events, in order.

    The response is the same whether its events are sent or not. `usage` is OpenAI's `usage` of a
    response; call `start` first, then `take`, and `finish` or `fail` at the end.
    """

    def __init__(self, model: str, tokenizer: Tokenizer, echo: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._head: Json = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            **echo,
        }
        self._output: list[Json] = []  # the last one grows while `_open`
        self._open = False
        self._texts: list[str] = []  # of the open item
        self._item_logprobs: list[Json] = []
        self._logprobs: list[Json] = []  # of text still to come
        self._sequence_number = 0
        self.end: Finished | None = None

    def start(self) -> list[Json]:
        """The events before all others."""
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def take(self, event: Event) -> list[Json]:
        """The stream events of one event."""
        match event:
            case ContentDelta(text):
                return self._text("message", text)
            case ReasoningDelta(text):
                self._logprobs = []  # those included are of the answer's text
                return self._text("reasoning", text)
            case ToolCallStart(_, call_id, name):
                called = {"call_id": call_id, "name": name, "arguments": ""}
                return [*self._close("completed"), *self._begin("function_call", **called)]
            case ToolCallArguments(_, text):
                self._texts.append(text)
                return [self._item_event("response.function_call_arguments.delta", delta=text)]
            case TokenLogprobs(items):
                self._logprobs.extend(chat_logprobs(self._tokenizer, items))
                return []
            case Finished():
                self.end = event
                return self._last_item()

    def finish(self, usage: Json) -> Json:
        """The last event of an answer that has ended."""
        status = self._status()
        return self._event(f"response.{status}", response=self._response(status, usage))

    def fail(self, error: BaseException) -> Json:
        """The last event of an answer that cannot go on."""
        found = as_api_error(error)
        code = "server_error" if found.status >= 500 else "invalid_prompt"
        said = {"code": code, "message": found.message}
        return self._event("response.failed", response=self._response("failed", error=said))

    def _status(self) -> str:
        cut = self.end is not None and self.end.reason == "length"
        return "incomplete" if cut else "completed"

    def _response(self, status: str, usage: Json | None = None, error: Json | None = None) -> Json:
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": error,
            "incomplete_details": reason,
            "output": [dict(item) for item in self._output],
            "usage": usage,
        }

    def _last_item(self) -> list[Json]:
        """The end of the item that is open; an answer has at least an empty message."""
        events = [] if self._output else self._begin("message")
        return [*events, *self._close(self._status())]

    def _text(self, kind: str, text: str) -> list[Json]:
        events = []
        if not self._open or self._output[-1]["type"] != kind:
            events = [*self._close("completed"), *self._begin(kind)]
        self._texts.append(text)
        if kind == "reasoning":
            return [*events, self._part_event("response.reasoning_text.delta", delta=text)]
        logprobs, self._logprobs = self._logprobs, []
        self._item_logprobs.extend(logprobs)
        delta = {"delta": text, "logprobs": logprobs}
        return [*events, self._part_event("response.output_text.delta", **delta)]

    def _begin(self, kind: str, **fields: Any) -> list[Json]:
        """Open an item; texts have one part, which opens with it."""
        item: Json = {
            "id": f"{_PREFIXES[kind]}_{secrets.token_hex(16)}",
            "type": kind,
            "status": "in_progress",
            **fields,
        }
        if kind == "message":
            item |= {"role": "assistant", "content": []}
        elif kind == "reasoning":
            item |= {"summary": [], "content": []}
        self._output.append(item)
        self._open, self._texts, self._item_logprobs = True, [], []
        events = [self._output_event("response.output_item.added", item=dict(item))]
        if kind != "function_call":
            events.append(self._part_event("response.content_part.added", part=self._part()))
        return events

    def _close(self, status: str) -> list[Json]:
        """Complete the item that is open, if one is."""
        if not self._open:
            return []
        item, text = self._output[-1], "".join(self._texts)
        if item["type"] == "function_call":
            self._logprobs = []
            item["arguments"] = text
            said = {"arguments": text, "name": item["name"]}
            events = [self._item_event("response.function_call_arguments.done", **said)]
        elif item["type"] == "reasoning":
            events = self._close_part("response.reasoning_text.done", text=text)
        else:
            self._item_logprobs.extend(self._logprobs)  # of tokens without text
            self._logprobs = []
            done = {"text": text, "logprobs": list(self._item_logprobs)}
            events = self._close_part("response.output_text.done", **done)
        item["status"] = status
        events.append(self._output_event("response.output_item.done", item=dict(item)))
        self._open = False
        return events

    def _close_part(self, kind: str, **fields: Any) -> list[Json]:
        part = self._part()
        self._output[-1]["content"] = [part]
        return [
            self._part_event(kind, **fields),
            self._part_event("response.content_part.done", part=part),
        ]

    def _part(self) -> Json:
        """The one part of the open item, as it is now."""
        text = "".join(self._texts)
        if self._output[-1]["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = list(self._item_logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _part_event(self, kind: str, **fields: Any) -> Json:
        return self._item_event(kind, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: Any) -> Json:
        return self._output_event(kind, item_id=self._output[-1]["id"], **fields)

    def _output_event(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, output_index=len(self._output) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Json:
        number = self._sequence_number
        self._sequence_number += 1
        return {"type": kind, "sequence_number": number, **fields}


def response_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int
) -> Json:
    """OpenAI's `usage` of a response."""
    return {
        "input_tokens": prompt_tokens,
        # Prompts are kept for others without being asked to, so nothing is written on demand.
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt_tokens + completion_tokens,
    }
