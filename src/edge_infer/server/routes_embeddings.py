"""POST /v1/embeddings: the last token's hidden state after the final norm, of length one."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray

from edge_infer.engine.errors import ContextLengthError, RequestError
from edge_infer.server.completion_request import Prompts
from edge_infer.server.errors import error_responses
from edge_infer.server.fields import Field, Integer, String, Table, unsupported
from edge_infer.server.generating import cancelled_on_disconnect
from edge_infer.server.limits import read_json
from edge_infer.server.openai_words import json_request
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.state import ServerState, server_state

router = APIRouter()

_FIELDS = Table(
    {
        "input": Field(Prompts(), "Text or token ids, one input or several", required=True),
        "model": Field(String(), "The served model's id, or nothing"),
        "encoding_format": Field(
            String(choices=("float", "base64")), "base64 is of little-endian float32"
        ),
        "dimensions": Field(Integer(1, 1 << 20), "Only the model's own"),
        "user": Field(String(), "Accepted without effect"),
    }
)
_RESPONSE: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data", "model", "usage"],
    "properties": {
        "object": {"enum": ["list"]},
        "model": {"type": "string"},
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["object", "index", "embedding"],
                "properties": {
                    "object": {"enum": ["embedding"]},
                    "index": {"type": "integer"},
                    "embedding": {
                        "anyOf": [
                            {"type": "array", "items": {"type": "number"}},
                            {"type": "string", "description": "base64"},
                        ]
                    },
                },
            },
        },
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "total_tokens"],
            "properties": {
                "prompt_tokens": {"type": "integer"},
                "total_tokens": {"type": "integer"},
            },
        },
    },
}


@router.post(
    "/v1/embeddings",
    summary="Embed texts",
    description=(
        "The embedding is the last token's hidden state after the final norm, scaled to length "
        "one: the pooling of embedding models that are decoders. A chat model's own states are "
        "served as well, but were not trained to be compared."
    ),
    response_model=None,
    openapi_extra=json_request(_FIELDS.schema()),
    responses={
        200: {
            "description": "The embeddings, in the order of the inputs",
            "content": {"application/json": {"schema": _RESPONSE}},
        },
        **error_responses(400, 401, 404, 408, 413, 415, 500, 503),
    },
)
async def embeddings(request: Request) -> dict[str, Any]:
    """Embed texts."""
    state = server_state(request)
    values = _FIELDS.read(await read_json(request))
    state.check_model(values.get("model"))
    prompts = await asyncio.to_thread(_token_ids, state, values["input"])
    vectors = await _embed(request, state, prompts)
    size = vectors.shape[1]
    if values.get("dimensions", size) != size:
        raise unsupported("dimensions", f"this model's embeddings have {size}")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    encoded = values.get("encoding_format") == "base64"
    tokens = sum(map(len, prompts))
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(vector) if encoded else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ],
        "model": state.model_id,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def _embed(
    request: Request, state: ServerState, prompts: list[list[int]]
) -> NDArray[np.float32]:
    """The states of all prompts, unless the client goes. [prompts, hidden]"""
    work = asyncio.create_task(state.engine.embed(prompts))

    def cancel() -> None:
        work.cancel()

    try:
        async with cancelled_on_disconnect(request.receive, cancel):
            await asyncio.wait([work])
    finally:
        work.cancel()
    if work.cancelled():
        raise RequestError("the client has gone")
    return work.result()


def _token_ids(state: ServerState, inputs: list[str | list[int]]) -> list[list[int]]:
    """Token ids of all inputs; what is wrong with one is said before anything is computed."""
    requests, longest = state.engine.engine.requests, state.engine.engine.max_model_len
    found = []
    for index, item in enumerate(inputs):
        try:
            token_ids = requests.token_ids(item)
        except RequestError as error:
            raise ParameterError(f"input[{index}]: {error}", param=f"input[{index}]") from error
        if len(token_ids) >= longest:
            raise ContextLengthError(len(token_ids), None, longest)
        found.append(token_ids)
    return found


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
