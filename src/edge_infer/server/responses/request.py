"""The body of a request for a response: its fields, and the ChatCall it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_infer.engine.sampling_params import MAX_LOGPROBS
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
    Either,
    Field,
    Integer,
    Map,
    Only,
    String,
    Table,
)
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.responses.input_items import ITEM, MAX_ITEMS, messages_of_input
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

LOGPROBS = "message.output_text.logprobs"

_NO_SUCH_TOOL = "functions are the only tools"
_HOSTED_TOOLS = dict.fromkeys(
    (
        *("web_search", "web_search_preview", "web_search_2025_08_26", "file_search", "computer"),
        *("web_search_preview_2025_03_11", "computer_use_preview", "code_interpreter", "mcp"),
        *("image_generation", "local_shell", "shell", "apply_patch", "custom", "namespace"),
        *("tool_search", "programmatic_tool_calling"),
    ),
    _NO_SUCH_TOOL,
)
_NAME = Field(String(min_length=1, max_length=128), required=True)
_TOOL = Tagged(
    {
        "function": {
            "name": _NAME,
            "description": Field(String()),
            "parameters": Field(Map(Anything()), "A JSON schema"),
            "strict": Field(Boolean(), "Calls keep to the schema even where none must be made"),
            "allowed_callers": Field(Only((["direct"],), _NO_SUCH_TOOL)),
            "defer_loading": Field(Only((False,), "there is no tool search")),
            "async": Field(Only((False,), "calls end the answer")),
            "output_schema": Field(Only((), "say it in the description")),
        }
    },
    refused=_HOSTED_TOOLS,
)
_NAMED_TOOL = Tagged(
    {"function": {"name": _NAME}},
    refused={"allowed_tools": "give only the tools that are allowed", **_HOSTED_TOOLS},
)
_FORMAT = Tagged(
    {
        "text": {},
        "json_object": {},
        "json_schema": {
            "name": _NAME,
            "schema": Field(Map(Anything()), required=True),
            "description": Field(String()),
            "strict": Field(Boolean(), "Accepted; schemas are always enforced"),
        },
    }
)


def _others(fields: Mapping[str, Field], *names: str) -> dict[str, Field]:
    return {name: fields[name] for name in names}


RESPONSES_FIELDS = Table(
    {
        "input": Field(
            Either(
                ((str, String()), (list, Array(ITEM, min_items=1, max_items=MAX_ITEMS))),
                "a string or an array of items",
            ),
            "The conversation",
            required=True,
        ),
        "instructions": Field(String(), "A system message before the input"),
        "model": Field(String(), "The served model's id, or nothing"),
        "max_output_tokens": Field(Integer(1, MAX_TOKENS), "Default: to the context's end"),
        **SAMPLING_FIELDS,
        **_others(COMMON_FIELDS, "stream", "priority", "cache_salt", "user"),
        "top_logprobs": Field(Integer(0, MAX_LOGPROBS), f"Needs include: [{LOGPROBS}]"),
        "include": Field(
            Array(Only((LOGPROBS,), f"{LOGPROBS} is what can be included"), max_items=16),
            "What else to put into the answer",
        ),
        "stream_options": Field(
            Table({"include_obfuscation": Field(Only((False,), "nothing is padded"))})
        ),
        "text": Field(
            Table(
                {
                    "format": Field(_FORMAT, "What the answer's text must be"),
                    "verbosity": Field(Only(("medium",), "say it in a message")),
                }
            )
        ),
        "tools": Field(Array(_TOOL, max_items=MAX_TOOLS)),
        "tool_choice": Field(
            Either(
                ((str, String(("auto", "none", "required"))), (dict, _NAMED_TOOL)),
                "auto, none, required or an object that names a function",
            )
        ),
        "parallel_tool_calls": Field(Boolean(), "Whether an answer may call several tools"),
        "reasoning": Field(
            Table(
                {
                    "effort": CHAT_FIELDS.fields["reasoning_effort"],
                    "summary": Field(
                        Only(("auto",), "the reasoning itself is given"), "Accepted without effect"
                    ),
                    "generate_summary": Field(
                        Only(("auto",), "the reasoning itself is given"), "Accepted without effect"
                    ),
                    "context": Field(Only(("auto",), "the chat template decides")),
                    "mode": Field(Only(("standard",), "there is one mode")),
                }
            )
        ),
        "chat_template_kwargs": CHAT_FIELDS.fields["chat_template_kwargs"],
        "metadata": Field(Map(String(max_length=512), max_items=16), "Repeated in the answer"),
        "store": Field(Only((False,), "responses are not stored")),
        "background": Field(Only((False,), "responses are not stored")),
        "truncation": Field(Only(("disabled",), "a prompt that is too long is refused, never cut")),
        **_others(CHAT_FIELDS.fields, "service_tier", "safety_identifier", "prompt_cache_key"),
        "prompt_cache_retention": Field(Only(("in_memory",), "nothing is kept longer")),
    },
    unsupported={
        "previous_response_id": "responses are not stored; send the items before as input",
        "conversation": "conversations are not stored; send their items as input",
        "prompt": "there are no stored prompts",
        "background_options": "there are no responses in the background",
        "context_management": "a prompt that is too long is refused, never cut",
        "max_tool_calls": "there are no built-in tools",
        "moderation": "nothing is moderated",
        "prompt_cache_options": "prompts are shared where they can be; see cache_salt",
        "access_programs": "there are none",
        "image": "this model takes text only",
        "n": "a response has one answer",
    },
)
RESPONSES_REQUEST_SCHEMA = RESPONSES_FIELDS.schema()


@dataclass(frozen=True)
class ResponsesRequest:
    """A checked request; `echo` are the fields of the answer that repeat it."""

    call: ChatCall
    stream: bool
    echo: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)  # of the HTTP response


def read_responses_request(state: ServerState, body: dict[str, Any]) -> ResponsesRequest:
    """Check a body. Raises ParameterError and ApiError."""
    ignored: list[str] | None = [] if state.settings.ignore_unknown_parameters else None
    values = RESPONSES_FIELDS.read(body, ignored=ignored)
    state.check_model(values.get("model"))
    stream = values.get("stream", False)
    if "stream_options" in values and not stream:
        raise ParameterError("stream_options needs stream: true", param="stream_options")
    call = _call(state, values)
    return ResponsesRequest(
        call=call,
        stream=stream,
        echo=_echo(values, call),
        headers=ignored_header(ignored),
    )


def _call(state: ServerState, values: Mapping[str, Any]) -> ChatCall:
    top, logprobs = values.get("top_logprobs"), LOGPROBS in values.get("include", ())
    if top is not None and not logprobs:
        raise ParameterError(f"top_logprobs needs include: [{LOGPROBS}]", param="top_logprobs")
    tools = [_chat_tool(tool) for tool in values.get("tools", ())]
    sampling = sampling_params(
        values,
        max_tokens=values.get("max_output_tokens"),
        logprobs=(top or 0) if logprobs else None,
        **_structured_outputs(values.get("text", {}).get("format", {"type": "text"})),
    )
    return ChatCall(
        messages=messages_of_input(values["input"], values.get("instructions")),
        sampling=sampling,
        tools=tools,
        tool_choice=_tool_choice(values, [tool["function"]["name"] for tool in tools]),
        parallel_tool_calls=values.get("parallel_tool_calls", True),
        template_kwargs=template_kwargs(
            state,
            values.get("chat_template_kwargs", {}),
            values.get("reasoning", {}).get("effort"),
            param="reasoning.effort",
        ),
        priority=values.get("priority", 0),
        cache_salt=values.get("cache_salt", ""),
    )


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the form of chat completions."""
    kept = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in kept if name in tool}}


def _tool_choice(values: Mapping[str, Any], names: list[str]) -> str | Mapping[str, Any]:
    check_tool_names(names)
    choice: str | Mapping[str, Any] = values.get("tool_choice", "auto" if names else "none")
    if isinstance(choice, str):
        check_tool_choice(names, None, forced=choice == "required")
        return choice
    check_tool_choice(names, choice["name"], forced=True)
    return {"type": "function", "function": {"name": choice["name"]}}


def _structured_outputs(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword `structured_outputs` of SamplingParams, or nothing."""
    if given["type"] == "text":
        return {}
    schema = given.get("schema")
    wanted = {"json_object": True} if schema is None else {"json": schema}
    try:
        return structured_outputs({"structured_outputs": wanted})
    except ParameterError as error:
        raise ParameterError(str(error), param="text.format", code=error.code) from error


def _echo(values: Mapping[str, Any], call: ChatCall) -> dict[str, Any]:
    """The fields of the answer that say what was asked, with what holds where nothing was."""
    sampling = call.sampling
    return {
        "background": False,
        "instructions": values.get("instructions"),
        "max_output_tokens": sampling.max_tokens,
        "metadata": values.get("metadata", {}),
        "parallel_tool_calls": call.parallel_tool_calls,
        "previous_response_id": None,
        "prompt_cache_key": values.get("prompt_cache_key"),
        "reasoning": {"effort": values.get("reasoning", {}).get("effort"), "summary": None},
        "safety_identifier": values.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": sampling.temperature,
        "text": {"format": values.get("text", {}).get("format", {"type": "text"})},
        "tool_choice": values.get("tool_choice", "auto"),
        "tools": [{"strict": None, "parameters": None, **t} for t in values.get("tools", ())],
        "top_logprobs": sampling.logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": values.get("user"),
    }
