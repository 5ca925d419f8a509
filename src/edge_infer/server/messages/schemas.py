"""What the OpenAPI document says about messages."""

from __future__ import annotations

from typing import Any

from edge_infer.server.errors import error_responses

_STRING: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_STOP_REASON = {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", None]}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


_BLOCK: dict[str, Any] = {
    "anyOf": [
        _object("type", "text", type={"enum": ["text"]}, text=_STRING),
        _object("type", "thinking", type={"enum": ["thinking"]}, thinking=_STRING),
        _object(
            *("type", "id", "name", "input"),
            type={"enum": ["tool_use"]},
            id=_STRING,
            name=_STRING,
            input={"type": "object"},
        ),
    ]
}
_USAGE = _object(
    *("input_tokens", "output_tokens"),
    input_tokens={**_COUNT, "description": "without those read from the cache"},
    cache_creation_input_tokens=_COUNT,
    cache_read_input_tokens=_COUNT,
    output_tokens=_COUNT,
    output_tokens_details=_object(thinking_tokens=_COUNT),
)
MESSAGE_SCHEMA = _object(
    *("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"),
    id=_STRING,
    type={"enum": ["message"]},
    role={"enum": ["assistant"]},
    model=_STRING,
    content={"type": "array", "items": _BLOCK},
    stop_reason=_STOP_REASON,
    stop_sequence=_TEXT_OR_NULL,
    usage=_USAGE,
)
_EVENT = _object(
    "type",
    type={
        "enum": [
            *("message_start", "ping", "content_block_start", "content_block_delta"),
            *("content_block_stop", "message_delta", "message_stop", "error"),
        ]
    },
    message=MESSAGE_SCHEMA,
    index=_COUNT,
    content_block=_BLOCK,
    delta={"type": "object"},
    usage=_USAGE,
)
ERROR_SCHEMA = _object(
    *("type", "error", "request_id"),
    type={"enum": ["error"]},
    error=_object("type", "message", type=_STRING, message=_STRING),
    request_id=_STRING,
)
MESSAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The message",
        "content": {
            "application/json": {"schema": MESSAGE_SCHEMA},
            "text/event-stream": {
                "schema": {
                    "type": "string",
                    "description": "With stream: events that end with message_stop or error",
                    "contentSchema": _EVENT,
                }
            },
        },
    },
    **error_responses(400, 401, 404, 408, 413, 415, 500, 503, schema=ERROR_SCHEMA),
}
COUNT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The count",
        "content": {"application/json": {"schema": _object("input_tokens", input_tokens=_COUNT)}},
    },
    **error_responses(400, 401, 404, 408, 413, 415, schema=ERROR_SCHEMA),
}
