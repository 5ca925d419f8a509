"""The messages of Anthropic's API: their blocks, and the chat messages they stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edge_infer.server.chat_request import MAX_MESSAGES
from edge_infer.server.fields import (
    Anything,
    Array,
    Boolean,
    Either,
    Field,
    Map,
    Only,
    String,
    Table,
)
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.tagged import Tagged

MAX_BLOCKS = 1024

_ONLY_TEXT = "this model takes text only"
_NO_SERVER_TOOLS = "this server runs no tools"

CACHE_CONTROL = Field(
    Table(
        {"type": Field(String(("ephemeral",)), required=True), "ttl": Field(String(("5m", "1h")))}
    ),
    "Accepted without effect: prompts are shared where they can be",
)
_TOOLSET = Field(Only((), _NO_SERVER_TOOLS))
_MEDIA = dict.fromkeys(("image", "document", "search_result"), _ONLY_TEXT)
_TEXT = {
    "text": Field(String(), required=True),
    "cache_control": CACHE_CONTROL,
    "citations": Field(Array(Anything(), max_items=MAX_BLOCKS), "Accepted without effect"),
}
_RESULT_BLOCK = Tagged(
    {"text": _TEXT},
    refused={**_MEDIA, "tool_reference": _NO_SERVER_TOOLS, "browser_state": _NO_SERVER_TOOLS},
)
_BLOCK = Tagged(
    {
        "text": _TEXT,
        "thinking": {
            "thinking": Field(String(), required=True),
            "signature": Field(String(), "Accepted without effect"),
        },
        "tool_use": {
            "id": Field(String(min_length=1), required=True),
            "name": Field(String(min_length=1), required=True),
            "input": Field(Map(Anything()), required=True),
            "cache_control": CACHE_CONTROL,
            "caller": Field(
                Tagged(
                    {"direct": {}},
                    refused=dict.fromkeys(
                        ("code_execution_20250825", "code_execution_20260120"), _NO_SERVER_TOOLS
                    ),
                )
            ),
            "toolset_name": _TOOLSET,
        },
        "tool_result": {
            "tool_use_id": Field(String(min_length=1), required=True),
            "content": Field(
                Either(
                    ((str, String()), (list, Array(_RESULT_BLOCK, max_items=MAX_BLOCKS))),
                    "a string or an array of blocks",
                )
            ),
            "is_error": Field(Boolean(), "The content is given to the model after `Error: `"),
            "cache_control": CACHE_CONTROL,
            "toolset_name": _TOOLSET,
        },
    },
    refused={
        **_MEDIA,
        "redacted_thinking": "this server made none, and cannot read another's",
        "container_upload": _NO_SERVER_TOOLS,
        "server_tool_use": _NO_SERVER_TOOLS,
        "mcp_tool_use": _NO_SERVER_TOOLS,
        "mcp_tool_result": _NO_SERVER_TOOLS,
        "web_search_tool_result": _NO_SERVER_TOOLS,
        "web_fetch_tool_result": _NO_SERVER_TOOLS,
        "code_execution_tool_result": _NO_SERVER_TOOLS,
        "bash_code_execution_tool_result": _NO_SERVER_TOOLS,
        "text_editor_code_execution_tool_result": _NO_SERVER_TOOLS,
        "tool_search_tool_result": _NO_SERVER_TOOLS,
    },
)
_OF_ROLE = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
_TEXTS = ("content", "reasoning_content")
_MESSAGE = Table(
    {
        "role": Field(String(tuple(_OF_ROLE)), required=True),
        "content": Field(
            Either(
                ((str, String()), (list, Array(_BLOCK, min_items=1, max_items=MAX_BLOCKS))),
                "a string or an array of blocks",
            ),
            required=True,
        ),
    }
)
MESSAGES = Array(_MESSAGE, min_items=1, max_items=MAX_MESSAGES)
SYSTEM = Either(
    ((str, String()), (list, Array(Tagged({"text": _TEXT}), max_items=MAX_BLOCKS))),
    "a string or an array of text blocks",
)


def chat_messages(
    system: str | Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Chat messages of checked ones. Raises ParameterError.

    Messages of one role in a row are one turn. Results of tools are messages of their own.
    """
    turns = _Turns()
    if text := _joined(system):
        turns.say("system", text)
    for index, message in enumerate(given):
        role, content = message["role"], message["content"]
        if isinstance(content, str):
            turns.say(role, content)
            continue
        for place, block in enumerate(content):
            param = f"messages[{index}].content[{place}]"
            if block["type"] not in _OF_ROLE[role]:
                raise ParameterError(
                    f"{param}.type is {block['type']!r}; "
                    f"of the role {role} it must be one of {', '.join(_OF_ROLE[role])}",
                    param=f"{param}.type",
                )
            turns.add(role, block, param)
    if given[-1]["role"] == "assistant":
        raise ParameterError(
            f"messages[{len(given) - 1}].role is 'assistant'; "
            "the last message must be the user's, for an answer begins a message",
            param=f"messages[{len(given) - 1}].role",
        )
    return turns.messages


class _Turns:
    """Chat messages as they are put together: texts are lists of lines until all are there."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # id of a tool_use to the tool

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that were put together."""
        return [
            {k: "\n".join(v) if k in _TEXTS else v for k, v in message.items()}
            for message in self._messages
        ]

    def say(self, role: str, text: str) -> None:
        """Text of a turn."""
        self._turn(role)["content"].append(text)

    def add(self, role: str, block: Mapping[str, Any], param: str) -> None:
        """A block of a turn."""
        match block["type"]:
            case "text":
                self.say(role, block["text"])
            case "thinking":
                self._turn(role).setdefault("reasoning_content", []).append(block["thinking"])
            case "tool_use":
                self._names[block["id"]] = block["name"]
                arguments = json.dumps(block["input"], ensure_ascii=False)
                function = {"name": block["name"], "arguments": arguments}
                calls = self._turn(role).setdefault("tool_calls", [])
                calls.append({"id": block["id"], "type": "function", "function": function})
            case "tool_result":
                self._result(block, f"{param}.tool_use_id")

    def _result(self, block: Mapping[str, Any], param: str) -> None:
        call_id = block["tool_use_id"]
        if (name := self._names.get(call_id)) is None:
            raise ParameterError(
                f"{param} is {call_id[:80]!r}; no tool_use before it has this id", param=param
            )
        text = _joined(block.get("content", ""))
        if block.get("is_error"):
            text = f"Error: {text}"
        message = {"role": "tool", "tool_call_id": call_id, "name": name, "content": [text]}
        self._messages.append(message)

    def _turn(self, role: str) -> dict[str, Any]:
        if not self._messages or self._messages[-1]["role"] != role:
            self._messages.append({"role": role, "content": []})
        return self._messages[-1]


def _joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content)
