"""The events of a chat as Anthropic's message: its stream events, and the whole."""

from __future__ import annotations

import json
import secrets
from typing import Any

from edge_infer.server.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    TokenLogprobs,
    ToolCallArguments,
    ToolCallStart,
)

Json = dict[str, Any]

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageWriter:
    """Turns the events of one answer into a message's stream events, in order.

    The message is the same whether its events are sent or not. Call `start` first, then `take`,
    and `finish` at the end.
    """

    def __init__(self, model: str) -> None:
        self._head: Json = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._blocks: list[Json] = []  # the last one grows while `_open`
        self._open = False
        self._pieces: list[str] = []  # of the open block
        self.end: Finished | None = None

    def start(self, usage: Json) -> list[Json]:
        """The events before all others."""
        return [{"type": "message_start", "message": self.message(usage)}, {"type": "ping"}]

    def take(self, event: Event) -> list[Json]:
        """The stream events of one event."""
        match event:
            case ContentDelta(text):
                return self._grow("text", text, {"type": "text_delta", "text": text})
            case ReasoningDelta(text):
                return self._grow("thinking", text, {"type": "thinking_delta", "thinking": text})
            case ToolCallStart(_, call_id, name):
                block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                return self._begin(block)
            case ToolCallArguments(_, text):
                delta = {"type": "input_json_delta", "partial_json": text}
                return self._grow("tool_use", text, delta)
            case TokenLogprobs():
                return []  # Anthropic's API has none
            case Finished():
                self.end = event
                return self._close()

    def finish(self, usage: Json) -> list[Json]:
        """The last events of an answer that has ended."""
        delta = self._stop()
        return [
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def message(self, usage: Json) -> Json:
        """The message as it is now. A call that was cut off is left out: it has no input."""
        content = [block for block in self._blocks if block.get("input", {}) is not None]
        return {**self._head, "content": content, **self._stop(), "usage": usage}

    def _stop(self) -> Json:
        if self.end is None:
            return {"stop_reason": None, "stop_sequence": None}
        if self.end.stop is not None and self.end.reason == "stop":
            return {"stop_reason": "stop_sequence", "stop_sequence": self.end.stop}
        return {"stop_reason": _STOP_REASONS[self.end.reason], "stop_sequence": None}

    def _grow(self, kind: str, piece: str, delta: Json) -> list[Json]:
        events: list[Json] = []
        if not self._open or self._blocks[-1]["type"] != kind:
            block = {"type": kind, kind: ""}
            if kind == "thinking":
                block["signature"] = ""  # this server signs nothing
            events = self._begin(block)
        self._pieces.append(piece)
        index = len(self._blocks) - 1
        return [*events, {"type": "content_block_delta", "index": index, "delta": delta}]

    def _begin(self, block: Json) -> list[Json]:
        events = self._close()
        self._blocks.append(block)
        self._open, self._pieces = True, []
        index = len(self._blocks) - 1
        start = {"type": "content_block_start", "index": index, "content_block": dict(block)}
        return [*events, start]

    def _close(self) -> list[Json]:
        """Complete the block that is open, if one is."""
        if not self._open:
            return []
        self._open = False
        block, text = self._blocks[-1], "".join(self._pieces)
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        else:
            block[block["type"]] = text
        return [{"type": "content_block_stop", "index": len(self._blocks) - 1}]


def _input(arguments: str) -> Json | None:
    """The arguments of a call; None when they are not a whole object."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def message_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int
) -> Json:
    """Anthropic's `usage`, whose input_tokens are those that were not read from the cache."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        # Prompts are kept for others without being asked to, so nothing is written on demand.
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": completion_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning_tokens},
    }
