"""GET /health: the process is alive. GET /ready: it serves."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from edge_infer.server.errors import ApiError, error_responses
from edge_infer.server.state import server_state

router = APIRouter()

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string", "enum": ["ok"]}},
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Yes", "content": {"application/json": {"schema": _SCHEMA}}},
    **error_responses(503),
}


@router.get("/health", summary="Is the process alive", response_model=None, responses=_RESPONSES)
@router.get("/ready", summary="Are requests served", response_model=None, responses=_RESPONSES)
async def health(request: Request) -> dict[str, str]:
    """503 once the engine cannot go on; the process then ends."""
    fatal = server_state(request).engine.fatal_error
    if fatal is not None:
        raise ApiError(503, f"the engine has stopped: {fatal}", code="engine_error")
    return {"status": "ok"}
