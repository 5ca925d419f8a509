"""The application: its routes, what wraps them, and how errors leave it."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from edge_infer import __version__
from edge_infer.engine.errors import EngineError
from edge_infer.engine.sampler import SamplerError
from edge_infer.server.async_engine import AsyncEngine, QueueFullError
from edge_infer.server.auth import ApiKeyMiddleware
from edge_infer.server.errors import ApiError, as_api_error, error_response
from edge_infer.server.settings import Settings
from edge_infer.server.state import ServerState

# Each module has a `router`; the order is that of the OpenAPI document.
ROUTES = (
    "routes_chat",
    "routes_responses",
    "routes_messages",
    "routes_completions",
    "routes_embeddings",
    "routes_tokenize",
    "routes_models",
    "routes_health",
    "routes_metrics",
    "routes_page",
)

_log = logging.getLogger(__name__)


def create_app(engine: AsyncEngine, settings: Settings) -> FastAPI:
    """The ASGI application that serves an engine; it starts and stops the engine's thread."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            await engine.stop()

    app = FastAPI(
        title="edge-infer",
        version=__version__,
        summary="An OpenAI-compatible server for models on this CPU",
        docs_url=None,  # the documentation pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=_middleware(settings),
    )
    app.state.server = ServerState(engine, settings)
    for name in ROUTES:
        app.include_router(importlib.import_module(f"edge_infer.server.{name}").router)
    # Those of the standard library, among them all refusals, are told apart in as_api_error.
    refusals = (ApiError, HTTPException, QueueFullError, EngineError, SamplerError)
    for kind in (*refusals, ValueError, TypeError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


def _middleware(settings: Settings) -> list[Middleware]:
    wrapped = []
    if settings.cors_origins:
        # Outermost: a browser's preflight carries no key.
        wrapped.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["x-ignored-parameters", "retry-after"],
            )
        )
    if settings.api_keys:
        wrapped.append(Middleware(ApiKeyMiddleware, keys=settings.api_keys))
    return wrapped


async def _answer_error(request: Request, error: Exception) -> Response:
    if as_api_error(error).status >= 500 and not isinstance(error, QueueFullError | ApiError):
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(error, request.url.path)
