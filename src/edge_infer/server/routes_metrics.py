"""GET /metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from edge_infer.server.state import server_state

router = APIRouter()

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@router.get(
    "/metrics",
    summary="Metrics in Prometheus' text format",
    response_class=Response,
    responses={
        200: {
            "description": "vLLM's metric names where the meaning is the same",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        }
    },
)
async def metrics(request: Request) -> Response:
    """The metrics now."""
    return Response(server_state(request).metrics.exposition(), media_type=_TEXT)
