"""The chat page at /, its files below /page/, and the figures it shows at /v1/status."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from typing import Any

from fastapi import APIRouter, Request, Response

from edge_infer.server.errors import ApiError, error_responses
from edge_infer.server.state import server_state
from edge_infer.server.status import STATUS_SCHEMA, read_status

# Nothing else is served, whatever lies beside them.
_CONTENT_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
    "chat.js": "text/javascript; charset=utf-8",
    "completion.js": "text/javascript; charset=utf-8",
    "format.js": "text/javascript; charset=utf-8",
    "markdown.js": "text/javascript; charset=utf-8",
    "message.js": "text/javascript; charset=utf-8",
    "sse.js": "text/javascript; charset=utf-8",
    "status.js": "text/javascript; charset=utf-8",
    "store.js": "text/javascript; charset=utf-8",
}

_HEADERS = {
    # Trusted types: the browser refuses text as HTML even where a script would try it.
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Asked again each time, answered with 304 while it is the same.
    "Cache-Control": "no-cache",
}

router = APIRouter()


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    """The page itself."""
    return _file(request, "index.html")


@router.get("/page/{name}", include_in_schema=False)
async def page_file(request: Request, name: str) -> Response:
    """A script or style of the page."""
    return _file(request, name)


@router.get(
    "/v1/status",
    summary="The model, its memory and the requests right now",
    response_model=None,
    responses={
        200: {
            "description": "The figures",
            "content": {"application/json": {"schema": STATUS_SCHEMA}},
        },
        **error_responses(401),
    },
)
async def status(request: Request) -> dict[str, Any]:
    """The model, its memory and the requests right now."""
    return await read_status(server_state(request))


def _file(request: Request, name: str) -> Response:
    if name not in _CONTENT_TYPES or server_state(request).settings.no_page:
        raise ApiError(404, f"there is no page at {request.url.path}", code="not_found")
    content, etag = _load(name)
    headers = {**_HEADERS, "ETag": etag}
    known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in known or f"W/{etag}" in known:  # a proxy that compresses weakens it
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_CONTENT_TYPES[name], headers=headers)


@functools.cache
def _load(name: str) -> tuple[bytes, str]:
    """A file's content and its entity tag."""
    content = (resources.files("edge_infer.server") / "page" / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:24]}"'
