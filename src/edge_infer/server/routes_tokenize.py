"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from edge_infer.server.chat import ChatCall, encode_chat
from edge_infer.server.chat_request import CHAT_FIELDS
from edge_infer.server.errors import error_responses
from edge_infer.server.fields import Array, Boolean, Field, Integer, String, Table
from edge_infer.server.limits import read_json
from edge_infer.server.openai_words import json_request
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.sampling_fields import MAX_TOKEN_ID, sampling_params
from edge_infer.server.state import server_state

router = APIRouter()

_SHARED = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt")
_TOKENIZE = Table(
    {
        "model": Field(String(), "The served model's id, or nothing"),
        "prompt": Field(String(), "A text; this or messages"),
        **{
            name: Field(CHAT_FIELDS.fields[name].kind, CHAT_FIELDS.fields[name].text)
            for name in _SHARED
        },
        "add_special_tokens": Field(
            Boolean(), "Default: true for a prompt, false for messages, whose template adds them"
        ),
        "return_token_strs": Field(Boolean(), "Also the tokens as the vocabulary spells them"),
    }
)
_DETOKENIZE = Table(
    {
        "model": Field(String(), "The served model's id, or nothing"),
        "tokens": Field(Array(Integer(0, MAX_TOKEN_ID)), required=True),
    }
)
_TOKENIZE_RESPONSE: dict[str, Any] = {
    "type": "object",
    "required": ["count", "max_model_len", "tokens"],
    "properties": {
        "count": {"type": "integer"},
        "max_model_len": {"type": "integer"},
        "tokens": {"type": "array", "items": {"type": "integer"}},
        "token_strs": {
            "type": ["array", "null"],
            "items": {"type": "string"},
        },
    },
}
_DETOKENIZE_RESPONSE: dict[str, Any] = {
    "type": "object",
    "required": ["prompt"],
    "properties": {"prompt": {"type": "string"}},
}


def _responses(schema: dict[str, Any], text: str) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"description": text, "content": {"application/json": {"schema": schema}}},
        **error_responses(400, 401, 404, 408, 413, 415),
    }


@router.post(
    "/tokenize",
    summary="Token ids of a text or a conversation",
    response_model=None,
    openapi_extra=json_request(_TOKENIZE.schema()),
    responses=_responses(_TOKENIZE_RESPONSE, "The tokens"),
)
async def tokenize(request: Request) -> dict[str, Any]:
    """Token ids of a text or a conversation."""
    state = server_state(request)
    values = _TOKENIZE.read(await read_json(request))
    state.check_model(values.get("model"))
    if ("prompt" in values) == ("messages" in values):
        raise ParameterError(
            "give prompt or messages, one of them",
            param="prompt",
            code="missing_required_parameter" if "prompt" not in values else "invalid_value",
        )
    tokenizer = state.tokenizer
    if "prompt" in values:
        special = values.get("add_special_tokens", True)
        token_ids = await asyncio.to_thread(tokenizer.encode, values["prompt"], special)
    elif values.get("add_special_tokens"):
        raise ParameterError(
            "add_special_tokens goes with prompt: the chat template writes special tokens itself",
            param="add_special_tokens",
        )
    else:
        call = ChatCall(
            messages=values["messages"],
            sampling=sampling_params({}),
            tools=values.get("tools", ()),
            template_kwargs=values.get("chat_template_kwargs", {}),
            add_generation_prompt=values.get("add_generation_prompt", True),
        )
        token_ids = await encode_chat(state, call)
    strings = None
    if values.get("return_token_strs"):
        strings = [tokenizer.backend.id_to_token(token_id) or "" for token_id in token_ids]
    return {
        "count": len(token_ids),
        "max_model_len": state.engine.engine.max_model_len,
        "tokens": token_ids,
        "token_strs": strings,
    }


@router.post(
    "/detokenize",
    summary="The text of token ids",
    response_model=None,
    openapi_extra=json_request(_DETOKENIZE.schema()),
    responses=_responses(_DETOKENIZE_RESPONSE, "The text"),
)
async def detokenize(request: Request) -> dict[str, Any]:
    """The text of token ids."""
    state = server_state(request)
    values = _DETOKENIZE.read(await read_json(request))
    state.check_model(values.get("model"))
    token_ids: list[int] = values["tokens"]
    vocab_size = state.engine.engine.model.spec.vocab_size
    for index, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            raise ParameterError(
                f"tokens[{index}] is {token_id}; ids are integers of 0 to {vocab_size - 1}",
                param=f"tokens[{index}]",
            )
    text = await asyncio.to_thread(state.tokenizer.decode, token_ids, False)
    return {"prompt": text}
