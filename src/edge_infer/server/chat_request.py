"""The body of a chat completion: its fields, and the ChatCall it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_infer.engine.sampling_params import MAX_LOGPROBS
from edge_infer.server.chat import ChatCall
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
    unsupported,
)
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.sampling_fields import (
    COMMON_FIELDS,
    COMMON_UNSUPPORTED,
    MAX_TOKENS,
    SAMPLING_FIELDS,
    sampling_params,
)
from edge_infer.server.state import ServerState
from edge_infer.server.structured_fields import STRUCTURED_FIELDS, structured_outputs

MAX_MESSAGES = 4096
MAX_TOOLS = 128
ROLES = ("system", "developer", "user", "assistant", "tool")

_FUNCTION_NAME = String(min_length=1, max_length=64)
_TEXT_PART = Table(
    {
        "type": Field(Only(("text", "refusal"), "this model takes text only"), required=True),
        "text": Field(String()),
        "refusal": Field(String()),
    },
    open=True,  # such as Anthropic's cache_control
)
_TOOL_CALL = Table(
    {
        "id": Field(String()),
        "type": Field(Only(("function",), "only functions can be called")),
        "function": Field(
            Table(
                {
                    "name": Field(String(min_length=1), required=True),
                    "arguments": Field(String(), "JSON"),
                }
            ),
            required=True,
        ),
        "index": Field(Integer(0)),
    }
)
_MESSAGE = Table(
    {
        "role": Field(String(choices=ROLES), required=True),
        "content": Field(
            Either(
                ((str, String()), (list, Array(_TEXT_PART, max_items=1024))),
                "a string, an array of parts, or null",
            )
        ),
        "name": Field(String()),
        "tool_calls": Field(Array(_TOOL_CALL, max_items=MAX_TOOLS)),
        "tool_call_id": Field(String()),
        "reasoning_content": Field(String()),
    },
    open=True,  # the chat template sees every field
)
_TOOL = Table(
    {
        "type": Field(Only(("function",), "tools are functions"), required=True),
        "function": Field(
            Table(
                {
                    "name": Field(_FUNCTION_NAME, required=True),
                    "description": Field(String()),
                    "parameters": Field(Map(Anything()), "A JSON schema"),
                    "strict": Field(
                        Boolean(), "Calls keep to the schema even where none must be made"
                    ),
                }
            ),
            required=True,
        ),
    }
)
_NAMED_TOOL = Table(
    {
        "type": Field(String(choices=("function",)), required=True),
        "function": Field(Table({"name": Field(_FUNCTION_NAME, required=True)}), required=True),
    }
)

CHAT_FIELDS = Table(
    {
        "messages": Field(
            Array(_MESSAGE, min_items=1, max_items=MAX_MESSAGES), "The conversation", required=True
        ),
        "model": Field(String(), "The served model's id, or nothing"),
        "max_completion_tokens": Field(Integer(1, MAX_TOKENS), "Default: to the context's end"),
        "max_tokens": Field(Integer(1, MAX_TOKENS), "The older name of max_completion_tokens"),
        **SAMPLING_FIELDS,
        **COMMON_FIELDS,
        "logprobs": Field(Boolean()),
        "top_logprobs": Field(Integer(0, MAX_LOGPROBS), "Needs logprobs"),
        "stream_options": Field(
            Table(
                {
                    "include_usage": Field(Boolean(), "A last chunk with the usage"),
                    "continuous_usage_stats": Field(Boolean(), "The usage in every chunk"),
                    "include_obfuscation": Field(Only((False,), "nothing is padded")),
                }
            )
        ),
        **STRUCTURED_FIELDS,
        "tools": Field(Array(_TOOL, max_items=MAX_TOOLS)),
        "tool_choice": Field(
            Either(
                ((str, String(choices=("auto", "none", "required"))), (dict, _NAMED_TOOL)),
                "auto, none, required or an object that names a function",
            )
        ),
        "parallel_tool_calls": Field(Boolean(), "Whether an answer may call several tools"),
        "chat_template_kwargs": Field(
            Map(Anything(), max_items=64), "Variables of the chat template, as enable_thinking"
        ),
        "add_generation_prompt": Field(Boolean()),
        "reasoning_effort": Field(
            String(choices=("none", "minimal", "low", "medium", "high", "xhigh")),
            "Passed to templates that know it; otherwise none switches reasoning off",
        ),
        "metadata": Field(Map(Anything()), "Accepted without effect"),
        "safety_identifier": Field(String(), "Accepted without effect"),
        "prompt_cache_key": Field(String(), "Accepted without effect; see cache_salt"),
        "store": Field(Only((False,), "answers are not stored")),
        "service_tier": Field(Only(("auto", "default"), "there is one tier")),
        "modalities": Field(Only((["text"],), "this model answers with text only")),
        "continue_final_message": Field(Only((False,), "answers begin a message")),
        "echo": Field(Only((False,), "answers do not repeat the conversation")),
    },
    unsupported={
        **COMMON_UNSUPPORTED,
        "audio": "this model does not speak",
        "prediction": "there are no predicted outputs",
        "web_search_options": "there is no web search",
        "functions": "use tools",
        "function_call": "use tool_choice",
        "best_of": "use n",
        "verbosity": "say it in a message",
        "chat_template": "the checkpoint's own template is used",
        "documents": "put them in a message",
        "mm_processor_kwargs": "this model takes text only",
        "thinking_token_budget": "see max_completion_tokens",
    },
)
CHAT_REQUEST_SCHEMA = CHAT_FIELDS.schema()

_RESERVED = ("messages", "tools", "documents", "chat_template", "add_generation_prompt")


@dataclass(frozen=True)
class ChatRequest:
    """A checked chat completion request."""

    call: ChatCall
    stream: bool
    include_usage: bool
    continuous_usage: bool
    headers: dict[str, str] = field(default_factory=dict)  # of the response


def read_chat_request(state: ServerState, body: dict[str, Any]) -> ChatRequest:
    """Check a body. Raises ParameterError and ApiError."""
    ignored: list[str] | None = [] if state.settings.ignore_unknown_parameters else None
    values = CHAT_FIELDS.read(body, ignored=ignored)
    state.check_model(values.get("model"))
    options = values.get("stream_options", {})
    stream = values.get("stream", False)
    if options and not stream:
        raise ParameterError("stream_options needs stream: true", param="stream_options")
    return ChatRequest(
        call=_call(state, values),
        stream=stream,
        include_usage=options.get("include_usage", False),
        continuous_usage=options.get("continuous_usage_stats", False),
        headers=ignored_header(ignored),
    )


def ignored_header(ignored: list[str] | None) -> dict[str, str]:
    """The response header that names the parameters that were ignored."""
    if not ignored:
        return {}
    names = ", ".join(name.encode("ascii", "backslashreplace").decode() for name in ignored)
    printable = "".join(c if c.isprintable() else "?" for c in names)
    return {"x-ignored-parameters": printable[:1024]}


def output_limit(values: Mapping[str, Any]) -> int | None:
    """Tokens that may be generated; None for as many as the context holds."""
    old, new = values.get("max_tokens"), values.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise ParameterError(
            f"max_tokens is {old} and max_completion_tokens is {new}; give one of them",
            param="max_tokens",
        )
    return old if new is None else new


def _call(state: ServerState, values: dict[str, Any]) -> ChatCall:
    top = values.get("top_logprobs")
    if top is not None and not values.get("logprobs"):
        raise ParameterError("top_logprobs needs logprobs: true", param="top_logprobs")
    sampling = sampling_params(
        values,
        max_tokens=output_limit(values),
        logprobs=(top or 0) if values.get("logprobs") else None,
        **structured_outputs(values),
    )
    return ChatCall(
        messages=values["messages"],
        sampling=sampling,
        n=values.get("n", 1),
        tools=values.get("tools", ()),
        tool_choice=_tool_choice(values),
        parallel_tool_calls=values.get("parallel_tool_calls", True),
        template_kwargs=template_kwargs(
            state, values.get("chat_template_kwargs", {}), values.get("reasoning_effort")
        ),
        add_generation_prompt=values.get("add_generation_prompt", True),
        priority=values.get("priority", 0),
        cache_salt=values.get("cache_salt", ""),
    )


def _tool_choice(values: Mapping[str, Any]) -> str | Mapping[str, Any]:
    names = [tool["function"]["name"] for tool in values.get("tools", ())]
    if len(set(names)) != len(names):
        raise ParameterError("tools has two functions of the same name", param="tools")
    choice: str | Mapping[str, Any] = values.get("tool_choice", "auto" if names else "none")
    if not names and choice not in ("none", "auto"):
        raise ParameterError("tool_choice needs tools", param="tool_choice")
    if not isinstance(choice, str) and choice["function"]["name"] not in names:
        name = choice["function"]["name"]
        raise ParameterError(
            f"tool_choice names {name!r}; tools has {', '.join(names)}",
            param="tool_choice.function.name",
        )
    return choice


def template_kwargs(
    state: ServerState,
    given: Mapping[str, Any],
    effort: str | None,
    *,
    param: str = "reasoning_effort",
) -> dict[str, Any]:
    """Variables of the chat template: those given, and what asks for an effort of reasoning.

    param: the parameter that names the effort. Raises ParameterError.
    """
    for name in given:
        if name in _RESERVED or not name.isidentifier():
            raise ParameterError(
                f"chat_template_kwargs has {name[:40]!r}, which is not a variable it may set",
                param=f"chat_template_kwargs.{name}",
            )
    if effort is None:
        return dict(given)
    return {**reasoning_kwargs(state.tokenizer.chat_template or "", effort, param=param), **given}


def reasoning_kwargs(
    template: str, effort: str, *, param: str = "reasoning_effort"
) -> dict[str, Any]:
    """Template variables that ask for an effort. Raises ParameterError if none can."""
    if effort == "none":
        return {"enable_thinking": False}
    if "reasoning_effort" in template:
        return {"reasoning_effort": effort}
    if "enable_thinking" in template:
        return {"enable_thinking": True}
    raise unsupported(param, "this model does not reason")
