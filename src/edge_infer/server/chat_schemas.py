"""What the OpenAPI document says about chat completion responses."""

from __future__ import annotations

from typing import Any

from edge_infer.server.errors import error_responses
from edge_infer.server.openai_words import HEAD_PROPERTIES, USAGE_SCHEMA

_STRING: dict[str, Any] = {"type": "string"}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}
_REASON: dict[str, Any] = {"enum": ["stop", "length", "tool_calls", None]}

_TOKEN: dict[str, Any] = {
    "token": _STRING,
    "logprob": {"type": "number"},
    "bytes": {"type": "array", "items": {"type": "integer"}},
}
_LOGPROBS: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {
        "content": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["token", "logprob", "bytes", "top_logprobs"],
                "properties": {
                    **_TOKEN,
                    "top_logprobs": {
                        "type": "array",
                        "items": {"type": "object", "properties": _TOKEN},
                    },
                },
            },
        }
    },
}
_TOOL_CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "index": {"type": "integer", "description": "in chunks"},
        "id": _STRING,
        "type": {"enum": ["function"]},
        "function": {"type": "object", "properties": {"name": _STRING, "arguments": _STRING}},
    },
}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "role": {"enum": ["assistant"]},
        "content": _TEXT_OR_NULL,
        "reasoning_content": {**_STRING, "description": "of models that reason"},
        "refusal": {"type": "null"},
        "tool_calls": {"type": "array", "items": _TOOL_CALL},
    },
}


def _choice(name: str, message: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["index", name, "logprobs", "finish_reason"],
        "properties": {
            "index": {"type": "integer"},
            name: message,
            "logprobs": _LOGPROBS,
            "finish_reason": _REASON,
            "stop_reason": {**_TEXT_OR_NULL, "description": "the stop string that ended it"},
        },
    }


CHAT_COMPLETION_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        **HEAD_PROPERTIES,
        "object": {"enum": ["chat.completion"]},
        "choices": {
            "type": "array",
            "items": _choice("message", {**_MESSAGE, "required": ["role", "content"]}),
        },
        "usage": USAGE_SCHEMA,
    },
}
CHAT_CHUNK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices"],
    "properties": {
        **HEAD_PROPERTIES,
        "object": {"enum": ["chat.completion.chunk"]},
        "choices": {"type": "array", "items": _choice("delta", _MESSAGE)},
        "usage": {"anyOf": [USAGE_SCHEMA, {"type": "null"}]},
    },
}


def generation_responses(
    whole: dict[str, Any], chunk: dict[str, Any]
) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers whole or as a stream of chunks."""
    stream = {
        "type": "string",
        "description": "With stream: lines `data: <chunk>`, then `data: [DONE]`",
        "contentSchema": chunk,
    }
    content = {
        "application/json": {"schema": whole},
        "text/event-stream": {"schema": stream},
    }
    return {
        200: {"description": "The answer", "content": content},
        **error_responses(400, 401, 404, 408, 413, 415, 500, 503),
    }


CHAT_RESPONSES = generation_responses(CHAT_COMPLETION_SCHEMA, CHAT_CHUNK_SCHEMA)
