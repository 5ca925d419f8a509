"""What OpenAI's chat and completion answers have in common: ids, usage, log-probabilities."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from edge_infer.engine.sampler import Sampled
from edge_infer.server.state import ServerState
from edge_infer.text.tokenizer import Tokenizer


def answer_head(state: ServerState, prefix: str, kind: str) -> dict[str, Any]:
    """The fields every answer and every chunk of it begins with."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": state.model_id,
        "system_fingerprint": state.system_fingerprint,
    }


def usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text alone; U+FFFD for bytes that are no character by themselves."""
    return tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")


def chat_logprobs(tokenizer: Tokenizer, items: Sequence[Sampled]) -> list[dict[str, Any]]:
    """Log-probabilities in the form of chat completions."""
    return [
        {
            **_token(tokenizer, item.token_id, item.logprob),
            "top_logprobs": [
                _token(tokenizer, token, logprob) for token, logprob in item.top_logprobs or ()
            ],
        }
        for item in items
    ]


def _token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    return {
        "token": token_text(tokenizer, token_id),
        "logprob": logprob,
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}

USAGE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": {
            "type": "object",
            "properties": {"cached_tokens": {**_COUNT, "description": "not computed again"}},
        },
        "completion_tokens_details": {
            "type": "object",
            "properties": {"reasoning_tokens": _COUNT},
        },
    },
}

HEAD_PROPERTIES: dict[str, Any] = {
    "id": {"type": "string"},
    "created": {"type": "integer", "description": "Unix time"},
    "model": {"type": "string"},
    "system_fingerprint": {"type": "string"},
}


def json_request(schema: dict[str, Any]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
