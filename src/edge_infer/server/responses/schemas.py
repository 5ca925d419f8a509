"""What the OpenAPI document says about responses."""

from __future__ import annotations

from typing import Any

from edge_infer.server.errors import error_responses

_STRING: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_STATUS: dict[str, Any] = {"enum": ["in_progress", "completed", "incomplete"]}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_TOKEN = {"token": _STRING, "logprob": {"type": "number"}, "bytes": _array({"type": "integer"})}
_LOGPROB = _object(*_TOKEN, "top_logprobs", **_TOKEN, top_logprobs=_array(_object(**_TOKEN)))
_OUTPUT_TEXT = _object(
    *("type", "text", "annotations"),
    type={"enum": ["output_text"]},
    text=_STRING,
    annotations=_array({"type": "object"}),
    logprobs=_array(_LOGPROB),
)
_REASONING_TEXT = _object("type", "text", type={"enum": ["reasoning_text"]}, text=_STRING)
_ITEM: dict[str, Any] = {
    "anyOf": [
        _object(
            *("id", "type", "status", "role", "content"),
            id=_STRING,
            type={"enum": ["message"]},
            status=_STATUS,
            role={"enum": ["assistant"]},
            content=_array(_OUTPUT_TEXT),
        ),
        _object(
            *("id", "type", "status", "summary", "content"),
            id=_STRING,
            type={"enum": ["reasoning"]},
            status=_STATUS,
            summary=_array({"type": "object"}),
            content=_array(_REASONING_TEXT),
        ),
        _object(
            *("id", "type", "status", "call_id", "name", "arguments"),
            id=_STRING,
            type={"enum": ["function_call"]},
            status=_STATUS,
            call_id=_STRING,
            name=_STRING,
            arguments={**_STRING, "description": "JSON"},
        ),
    ]
}
_USAGE = _object(
    *("input_tokens", "output_tokens", "total_tokens"),
    input_tokens=_COUNT,
    input_tokens_details=_object(cached_tokens=_COUNT, cache_write_tokens=_COUNT),
    output_tokens=_COUNT,
    output_tokens_details=_object(reasoning_tokens=_COUNT),
    total_tokens=_COUNT,
)
RESPONSE_SCHEMA: dict[str, Any] = _object(
    *("id", "object", "created_at", "status", "model", "output", "error", "incomplete_details"),
    *("instructions", "metadata", "parallel_tool_calls", "temperature", "top_p"),
    *("tool_choice", "tools", "usage"),
    id=_STRING,
    object={"enum": ["response"]},
    created_at={"type": "integer", "description": "Unix time"},
    completed_at={"type": ["integer", "null"]},
    status={"enum": ["in_progress", "completed", "incomplete", "failed"]},
    model=_STRING,
    output=_array(_ITEM),
    error=_or_null(_object("code", "message", code=_STRING, message=_STRING)),
    incomplete_details=_or_null(_object(reason={"enum": ["max_output_tokens"]})),
    instructions={"type": ["string", "null"]},
    max_output_tokens={"type": ["integer", "null"]},
    metadata={"type": "object"},
    parallel_tool_calls={"type": "boolean"},
    reasoning={"type": "object"},
    store={"enum": [False]},
    temperature={"type": "number"},
    text={"type": "object"},
    tool_choice={"type": ["string", "object"]},
    tools=_array({"type": "object"}),
    top_logprobs=_COUNT,
    top_p={"type": "number"},
    truncation={"enum": ["disabled"]},
    usage=_or_null(_USAGE),
)
_EVENT = _object(
    *("type", "sequence_number"),
    type={**_STRING, "description": "response.created, response.output_text.delta, ..."},
    sequence_number=_COUNT,
    response=RESPONSE_SCHEMA,
    item=_ITEM,
    part={"anyOf": [_OUTPUT_TEXT, _REASONING_TEXT]},
    item_id=_STRING,
    output_index=_COUNT,
    content_index=_COUNT,
    delta=_STRING,
    text=_STRING,
    arguments=_STRING,
)
RESPONSES_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The response",
        "content": {
            "application/json": {"schema": RESPONSE_SCHEMA},
            "text/event-stream": {
                "schema": {
                    "type": "string",
                    "description": "With stream: events that end with response.completed, "
                    "response.incomplete or response.failed",
                    "contentSchema": _EVENT,
                }
            },
        },
    },
    **error_responses(400, 401, 404, 408, 413, 415, 500, 503),
}
