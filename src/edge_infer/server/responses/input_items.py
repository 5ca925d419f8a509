"""The input of a response: its items, and the messages they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_infer.server.errors import ApiError
from edge_infer.server.fields import Anything, Array, Boolean, Either, Field, Only, String
from edge_infer.server.limits import parse_json
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.tagged import Tagged

MAX_ITEMS = 4096
MAX_PARTS = 1024

_ONLY_TEXT = "this model takes text only"
_NOT_STORED = "responses are not stored; send the items themselves"
_NO_SUCH_TOOL = "functions are the only tools"
_STATUS = Field(String(("in_progress", "completed", "incomplete")), "Accepted without effect")
_ID = Field(String(), "Accepted without effect")
_DIRECT = {
    "caller": Field(Tagged({"direct": {}}, refused={"program": _NO_SUCH_TOOL})),
    "namespace": Field(Only((), "functions have no namespaces")),
}
_BREAKPOINT = Field(Anything(), "Accepted without effect: prompts are shared where they can be")

_MEDIA = dict.fromkeys(("input_image", "input_file", "input_audio"), _ONLY_TEXT)
_INPUT_TEXT = {"text": Field(String(), required=True), "prompt_cache_breakpoint": _BREAKPOINT}
_MESSAGE_PARTS = Tagged(
    {
        "input_text": _INPUT_TEXT,
        "output_text": {
            "text": Field(String(), required=True),
            "annotations": Field(Array(Anything()), "Accepted without effect"),
            "logprobs": Field(Array(Anything()), "Accepted without effect"),
        },
        "refusal": {"refusal": Field(String(), required=True)},
    },
    refused=_MEDIA,
)


def _text(parts: Tagged) -> Either:
    """Text as a string or in parts."""
    array = Array(parts, max_items=MAX_PARTS)
    return Either(((str, String()), (list, array)), "a string or an array of parts")


def _texts(kind: str) -> Array:
    return Array(Tagged({kind: {"text": Field(String(), required=True)}}), max_items=MAX_PARTS)


ITEM = Tagged(
    {
        "message": {
            "role": Field(String(("user", "assistant", "system", "developer")), required=True),
            "content": Field(_text(_MESSAGE_PARTS), required=True),
            "id": _ID,
            "status": _STATUS,
            "phase": Field(String(("commentary", "final_answer")), "Accepted without effect"),
        },
        "function_call": {
            "call_id": Field(String(min_length=1), required=True),
            "name": Field(String(min_length=1), required=True),
            "arguments": Field(String(), "A JSON object", required=True),
            "id": _ID,
            "status": _STATUS,
            "async": Field(Boolean(), "Accepted without effect"),
            **_DIRECT,
        },
        "function_call_output": {
            "call_id": Field(String(min_length=1), required=True),
            "output": Field(
                _text(Tagged({"input_text": _INPUT_TEXT}, refused=_MEDIA)), required=True
            ),
            "name": Field(String(), "Accepted without effect: the call has it"),
            "id": _ID,
            "status": _STATUS,
            **_DIRECT,
        },
        "reasoning": {
            "summary": Field(_texts("summary_text"), "Read where there is no content"),
            "content": Field(_texts("reasoning_text")),
            "encrypted_content": Field(
                Only((), "this server made none, and cannot read another's")
            ),
            "id": _ID,
            "status": _STATUS,
        },
    },
    refused={
        "item_reference": _NOT_STORED,
        "compaction": _NOT_STORED,
        "compaction_trigger": "nothing is compacted",
        "additional_tools": "use tools",
        **dict.fromkeys(
            (
                *("computer_call", "computer_call_output", "file_search_call", "web_search_call"),
                *("image_generation_call", "code_interpreter_call", "local_shell_call"),
                *("local_shell_call_output", "shell_call", "shell_call_output"),
                *("apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_call"),
                *("mcp_approval_request", "mcp_approval_response", "custom_tool_call"),
                *("custom_tool_call_output", "tool_search_call", "tool_search_output"),
                *("program", "program_output", "configuration_update"),
            ),
            _NO_SUCH_TOOL,
        ),
    },
    default="message",
)


def messages_of_input(
    given: str | Sequence[Mapping[str, Any]], instructions: str | None
) -> list[dict[str, Any]]:
    """Chat messages of a checked input. Raises ParameterError.

    What the assistant did between two others' items is one message: its reasoning, its text and
    its calls. Instructions and system messages at the beginning are one system message.
    """
    conversation = _Conversation()
    if instructions:
        conversation.say("system", instructions)
    if isinstance(given, str):
        conversation.say("user", given)
        return conversation.messages
    for index, item in enumerate(given):
        param = f"input[{index}]"
        match item["type"]:
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                conversation.say(role, _joined(item["content"]))
            case "reasoning":
                conversation.reason(_joined(item.get("content") or item.get("summary", ())))
            case "function_call":
                _check_arguments(item["arguments"], f"{param}.arguments")
                conversation.call(item["call_id"], item["name"], item["arguments"])
            case "function_call_output":
                output = _joined(item["output"])
                conversation.answer(item["call_id"], output, f"{param}.call_id")
    return conversation.messages


class _Conversation:
    """Messages as they are put together: texts are lists until all are there."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # call id to function

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that were put together."""
        separators = {"content": "\n\n", "reasoning_content": "\n"}
        return [
            {k: separators[k].join(v) if k in separators else v for k, v in message.items()}
            for message in self._messages
        ]

    def say(self, role: str, text: str) -> None:
        """A message's text."""
        if role == "assistant":
            self._thinking_assistant()["content"].append(text)
        elif role == "system" and len(self._messages) == 1 and self._last_role == "system":
            self._messages[0]["content"].append(text)
        else:
            self._begin(role)["content"].append(text)

    def reason(self, text: str) -> None:
        """The assistant's reasoning, before its text and calls."""
        self._thinking_assistant().setdefault("reasoning_content", []).append(text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """A call of the assistant's."""
        self._names[call_id] = name
        function = {"name": name, "arguments": arguments}
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def answer(self, call_id: str, output: str, param: str) -> None:
        """What a call gave."""
        if (name := self._names.get(call_id)) is None:
            raise ParameterError(
                f"{param} is {call_id[:80]!r}; no function_call before it has this call_id",
                param=param,
            )
        message = self._begin("tool")
        message.update(tool_call_id=call_id, name=name, content=[output])

    @property
    def _last_role(self) -> str | None:
        return self._messages[-1]["role"] if self._messages else None

    def _thinking_assistant(self) -> dict[str, Any]:
        """The assistant's message that has no text and no calls yet."""
        message = self._assistant()
        if message["content"] or "tool_calls" in message:
            return self._begin("assistant")
        return message

    def _assistant(self) -> dict[str, Any]:
        """The assistant's message that is being put together."""
        return self._messages[-1] if self._last_role == "assistant" else self._begin("assistant")

    def _begin(self, role: str) -> dict[str, Any]:
        self._messages.append({"role": role, "content": []})
        return self._messages[-1]


def _joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a content that is a string or parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["refusal" if part["type"] == "refusal" else "text"] for part in content)


def _check_arguments(arguments: str, param: str) -> None:
    """A call is given to the chat template as an object."""
    try:
        parse_json(arguments.encode())
    except ApiError as error:
        message = f"{param}: {error.message.replace('the body is', 'it is', 1)}"
        raise ParameterError(message, param=param) from error
