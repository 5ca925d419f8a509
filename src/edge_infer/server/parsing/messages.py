"""Messages of the API as chat templates want them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edge_infer.server.errors import ApiError
from edge_infer.server.limits import parse_json
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.parsing.output_format import TOOL_CALL

_TEXT_PARTS = ("text", "refusal")
_HOW_TO_CALL = """\
You may call functions to answer. They are listed between <tools> and </tools> as JSON, one a line.
<tools>
{tools}
</tools>
To call a function, write its name and its arguments as a JSON object between these tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"the argument's name": "its value"}}}}
</tool_call>"""


def messages_for_template(
    messages: Sequence[Mapping[str, Any]],
    template: str,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    knows_tools: bool = True,
) -> list[dict[str, Any]]:
    """Messages whose content is text and whose calls have arguments as objects.

    The template decides which roles may follow each other. For one that does not know the role
    `developer`, it is `system`. For one that does not know tools, `tools` are told in the system
    message, calls are text and their results are messages of the user.

    Raises ParameterError, which names the field.
    """
    result = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if "developer" not in template:
        for message in result:
            if message["role"] == "developer":
                message["role"] = "system"
    if knows_tools:
        return result
    result = _calls_as_text(result)
    return _with_tools(result, tools) if tools else result


def tools_for_template(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools without what is for the server only: whether they are strict."""
    return [
        {
            **tool,
            "function": {name: v for name, v in tool["function"].items() if name != "strict"},
        }
        for tool in tools
    ]


def _message(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    result = {key: value for key, value in message.items() if value is not None}
    if "content" not in result and result["role"] != "assistant":
        raise _missing(f"{path}.content")
    result["content"] = _content(message.get("content"), f"{path}.content")
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = [
            _call(call, f"{path}.tool_calls[{index}].function") for index, call in enumerate(calls)
        ]
    if result["role"] == "tool" and not result.get("tool_call_id"):
        raise _missing(f"{path}.tool_call_id")
    return result


def _content(content: Any, path: str) -> str:
    """The text of a content; parts are lines."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Mapping[str, Any], path: str) -> str:
    kind = part.get("type")
    if kind not in _TEXT_PARTS:
        raise ParameterError(
            f"{path}.type is {str(kind)[:80]!r}; this model takes text only", param=f"{path}.type"
        )
    if not isinstance(text := part.get(kind), str):
        raise _missing(f"{path}.{kind}")
    return text


def _call(call: Mapping[str, Any], path: str) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        arguments = _arguments(arguments, f"{path}.arguments")
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _arguments(text: str, path: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        return parse_json(text.encode("utf-8", "surrogatepass"))
    except ApiError as error:
        what = "a JSON object is expected" if error.code == "invalid_type" else error.message
        raise ParameterError(f"{path} is {text[:80]!r}: {what}", param=path) from error


def _missing(path: str) -> ParameterError:
    return ParameterError(f"{path} is missing", param=path, code="missing_required_parameter")


def _calls_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls in Hermes' notation in the assistant's text; results in the user's."""
    result: list[dict[str, Any]] = []
    previous = ""
    for message in messages:
        role = message["role"]
        if role == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if previous == "tool":
                result[-1]["content"] += f"\n{text}"
            else:
                result.append({"role": "user", "content": text})
        elif "tool_calls" in message:
            calls = message.pop("tool_calls")
            lines = [*([message["content"]] if message["content"] else []), *map(_call_text, calls)]
            result.append({**message, "content": "\n".join(lines)})
        else:
            result.append(message)
        previous = role
    return result


def _call_text(call: Mapping[str, Any]) -> str:
    function = {name: call["function"][name] for name in ("name", "arguments")}
    start, end = TOOL_CALL
    return f"{start}\n{json.dumps(function, ensure_ascii=False)}\n{end}"


def _with_tools(
    messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The tools and how to call them, in the system message."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _HOW_TO_CALL.format(tools=lines)
    if messages and messages[0]["role"] == "system":
        first, *others = messages
        content = f"{first['content']}\n\n{text}" if first["content"] else text
        return [{**first, "content": content}, *others]
    return [{"role": "system", "content": text}, *messages]
