"""The body of a request to the Messages API: its fields, and the ChatCall it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_infer.engine.sampling_params import MAX_STOP_STRINGS
from edge_infer.server.chat import ChatCall
from edge_infer.server.chat_request import (
    CHAT_FIELDS,
    MAX_TOOLS,
    ignored_header,
    template_kwargs,
)
from edge_infer.server.fields import (
    Anything,
    Array,
    Boolean,
    Field,
    Integer,
    Map,
    Only,
    String,
    Table,
    unsupported,
)
from edge_infer.server.messages.content import CACHE_CONTROL, MESSAGES, SYSTEM, chat_messages
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.sampling_fields import (
    COMMON_FIELDS,
    MAX_TOKENS,
    SAMPLING_FIELDS,
    sampling_params,
)
from edge_infer.server.state import ServerState
from edge_infer.server.structured_fields import structured_outputs
from edge_infer.server.tagged import Tagged
from edge_infer.server.tool_names import check_tool_choice, check_tool_names

MIN_THINKING_BUDGET = 1024

_NO_SERVER_TOOLS = "this server runs no tools"
_SERVER_TOOLS = dict.fromkeys(
    (
        *("bash_20250124", "browser_toolset_20260801", "code_execution_20250522"),
        *("code_execution_20250825", "code_execution_20260120", "code_execution_20260521"),
        *("computer_20250124", "computer_toolset_20260801", "memory_20250818"),
        *("text_editor_20250124", "text_editor_20250429", "text_editor_20250728"),
        *("tool_search_tool_bm25", "tool_search_tool_bm25_20251119", "tool_search_tool_regex"),
        *("tool_search_tool_regex_20251119", "web_fetch_20250910", "web_fetch_20260209"),
        *("web_fetch_20260309", "web_fetch_20260318", "web_search_20250305"),
        *("web_search_20260209", "web_search_20260318", "mcp_toolset"),
    ),
    _NO_SERVER_TOOLS,
)
_TOOL = Tagged(
    {
        "custom": {
            "name": Field(String(min_length=1, max_length=128), required=True),
            "description": Field(String()),
            "input_schema": Field(Map(Anything()), "A JSON schema", required=True),
            "cache_control": CACHE_CONTROL,
            "strict": Field(Boolean(), "Calls keep to the schema even where none must be made"),
            "eager_input_streaming": Field(Boolean(), "Accepted: inputs always come in pieces"),
            "allowed_callers": Field(Only((["direct"],), _NO_SERVER_TOOLS)),
            "defer_loading": Field(Only((False,), "there is no tool search")),
            "input_examples": Field(Only((), "give them in the description")),
        }
    },
    refused=_SERVER_TOOLS,
    default="custom",
)
_ONE_TOOL = {"disable_parallel_tool_use": Field(Boolean(), "At most one call in an answer")}
_TOOL_CHOICE = Tagged(
    {
        "auto": _ONE_TOOL,
        "any": _ONE_TOOL,
        "tool": {"name": Field(String(min_length=1), required=True), **_ONE_TOOL},
        "none": {},
    }
)
_DISPLAY = Field(Only(("summarized",), "thinking is given as it is"), "Accepted without effect")
_THINKING = Tagged(
    {
        "enabled": {
            "budget_tokens": Field(
                Integer(MIN_THINKING_BUDGET, MAX_TOKENS),
                "Less than max_tokens, which is the bound of thinking and answer together; "
                "otherwise accepted without effect",
                required=True,
            ),
            "display": _DISPLAY,
        },
        "adaptive": {"display": _DISPLAY},
        "disabled": {},
    },
    refused={"between_tools": "the chat template decides"},
)
_OUTPUT_CONFIG = Table(
    {
        "effort": Field(
            String(("low", "medium", "high", "xhigh", "max")), "For templates that know efforts"
        ),
        "format": Field(
            Tagged({"json_schema": {"schema": Field(Map(Anything()), required=True)}}),
            "What the answer's text must be",
        ),
    }
)
_PROMPT_FIELDS: dict[str, Field] = {
    "messages": Field(MESSAGES, "The conversation", required=True),
    "model": Field(String(), "The served model's id, or nothing"),
    "system": Field(SYSTEM, "The system message"),
    "tools": Field(Array(_TOOL, max_items=MAX_TOOLS)),
    "tool_choice": Field(_TOOL_CHOICE),
    "thinking": Field(_THINKING, "Without it the chat template decides"),
    "output_config": Field(_OUTPUT_CONFIG),
    "cache_control": CACHE_CONTROL,
    "chat_template_kwargs": CHAT_FIELDS.fields["chat_template_kwargs"],
    "speed": Field(Only(("standard",), "there is one speed")),
}
_UNSUPPORTED = {
    "container": _NO_SERVER_TOOLS,
    "context_management": "a prompt that is too long is refused, never cut",
    "diagnostics": "prompts are shared where they can be",
    "inference_geo": "this server is where it is",
    "mcp_servers": _NO_SERVER_TOOLS,
    "user_profile_id": "there are no profiles",
    "workspace_id": "there are no workspaces",
}
MESSAGES_FIELDS = Table(
    {
        **_PROMPT_FIELDS,
        "max_tokens": Field(
            Integer(1, MAX_TOKENS), "Most tokens of thinking and answer", required=True
        ),
        **{name: field for name, field in SAMPLING_FIELDS.items() if name != "stop"},
        "stop_sequences": Field(
            Array(String(min_length=1), max_items=MAX_STOP_STRINGS), "Strings that end the text"
        ),
        **{name: COMMON_FIELDS[name] for name in ("stream", "priority", "cache_salt")},
        "metadata": Field(Table({"user_id": Field(String())}), "Accepted without effect"),
        "service_tier": Field(Only(("auto", "standard_only"), "there is one tier")),
    },
    unsupported=_UNSUPPORTED,
)
COUNT_FIELDS = Table(_PROMPT_FIELDS, unsupported=_UNSUPPORTED)


@dataclass(frozen=True)
class MessagesRequest:
    """A checked request."""

    call: ChatCall
    stream: bool
    headers: dict[str, str] = field(default_factory=dict)  # of the HTTP response


def read_messages_request(state: ServerState, body: dict[str, Any]) -> MessagesRequest:
    """Check a body. Raises ParameterError and ApiError."""
    ignored: list[str] | None = [] if state.settings.ignore_unknown_parameters else None
    values = MESSAGES_FIELDS.read(body, ignored=ignored)
    budget, limit = values.get("thinking", {}).get("budget_tokens", 0), values["max_tokens"]
    if budget >= limit:
        raise ParameterError(
            f"thinking.budget_tokens is {budget}; it must be less than max_tokens, "
            f"which is {limit}",
            param="thinking.budget_tokens",
        )
    sampling = {name: value for name, value in values.items() if name in SAMPLING_FIELDS}
    call = _call(
        state,
        values,
        {**sampling, "stop": values.get("stop_sequences", [])},
        max_tokens=limit,
    )
    headers = ignored_header(ignored)
    return MessagesRequest(call=call, stream=values.get("stream", False), headers=headers)


def read_count_request(state: ServerState, body: dict[str, Any]) -> tuple[ChatCall, dict[str, str]]:
    """Check a body whose tokens are to be counted; also the headers of the HTTP response."""
    ignored: list[str] | None = [] if state.settings.ignore_unknown_parameters else None
    call = _call(state, COUNT_FIELDS.read(body, ignored=ignored), {})
    return call, ignored_header(ignored)


def _call(
    state: ServerState,
    values: Mapping[str, Any],
    sampling: Mapping[str, Any],
    max_tokens: int | None = None,
) -> ChatCall:
    state.check_model(values.get("model"))
    choice = values.get("tool_choice", {})
    tools = [_chat_tool(tool) for tool in values.get("tools", ())]
    return ChatCall(
        messages=chat_messages(values.get("system", ""), values["messages"]),
        sampling=sampling_params(sampling, max_tokens=max_tokens, **_structured_outputs(values)),
        tools=tools,
        tool_choice=_tool_choice(choice, [tool["function"]["name"] for tool in tools]),
        parallel_tool_calls=not choice.get("disable_parallel_tool_use", False),
        template_kwargs=_template_kwargs(state, values),
        priority=values.get("priority", 0),
        cache_salt=values.get("cache_salt", ""),
    )


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the form of chat completions."""
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    function |= {name: tool[name] for name in ("description", "strict") if name in tool}
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any], names: list[str]) -> str | Mapping[str, Any]:
    check_tool_names(names)
    kind = choice.get("type", "auto" if names else "none")
    check_tool_choice(names, choice.get("name"), forced=kind in ("any", "tool"))
    if kind == "tool":
        return {"type": "function", "function": {"name": choice["name"]}}
    return "required" if kind == "any" else str(kind)


def _structured_outputs(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword `structured_outputs` of SamplingParams, or nothing."""
    wanted = values.get("output_config", {}).get("format")
    if wanted is None:
        return {}
    try:
        return structured_outputs({"structured_outputs": {"json": wanted["schema"]}})
    except ParameterError as error:
        raise ParameterError(str(error), param="output_config.format", code=error.code) from error


def _template_kwargs(state: ServerState, values: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of the chat template, among them those that switch thinking on or off."""
    template = state.tokenizer.chat_template or ""
    kwargs: dict[str, Any] = {}
    effort = values.get("output_config", {}).get("effort")
    if effort is not None:
        if "reasoning_effort" not in template:
            raise unsupported("output_config.effort", "this model knows no efforts")
        kwargs["reasoning_effort"] = effort
    thinking = values.get("thinking", {}).get("type")
    if thinking in ("enabled", "adaptive"):
        if not any(
            word in template for word in ("enable_thinking", "reasoning_effort", "</think>")
        ):
            raise unsupported("thinking", "this model does not reason")
        kwargs["enable_thinking"] = True
    elif thinking == "disabled":
        if "</think>" in template and "enable_thinking" not in template:
            raise unsupported("thinking", "this model always reasons")
        kwargs["enable_thinking"] = False
    return {**kwargs, **template_kwargs(state, values.get("chat_template_kwargs", {}), None)}
