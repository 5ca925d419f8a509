"""GET /v1/models: the one model served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from edge_infer.server.errors import error_responses
from edge_infer.server.state import ServerState, server_state

router = APIRouter()

MODEL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by", "max_model_len"],
    "properties": {
        "id": {"type": "string"},
        "object": {"enum": ["model"]},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
        "root": {"type": "string"},
        "max_model_len": {"type": "integer", "description": "tokens, prompt and answer"},
    },
}
_LIST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {
        "object": {"enum": ["list"]},
        "data": {"type": "array", "items": MODEL_SCHEMA},
    },
}


def _ok(schema: dict[str, Any], text: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": text, "content": {"application/json": {"schema": schema}}}}


@router.get(
    "/v1/models",
    summary="List the models",
    response_model=None,
    responses=_ok(_LIST_SCHEMA, "The model served"),
)
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    return {"object": "list", "data": [_describe(server_state(request))]}


@router.get(
    "/v1/models/{model:path}",
    summary="Describe a model",
    response_model=None,
    responses={**_ok(MODEL_SCHEMA, "The model"), **error_responses(404)},
)
async def model(request: Request, model: str) -> dict[str, Any]:
    """Describe a model."""
    state = server_state(request)
    state.check_model(model)
    return _describe(state)


def _describe(state: ServerState) -> dict[str, Any]:
    return {
        "id": state.model_id,
        "object": "model",
        "created": state.created,
        "owned_by": "edge-infer",
        "root": state.model_id,
        "max_model_len": state.engine.engine.max_model_len,
    }
