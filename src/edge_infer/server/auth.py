"""API keys, as a bearer token or in `x-api-key`, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from edge_infer.server.errors import ApiError, error_response

_OPEN_PATHS = frozenset({"/", "/health", "/ready"})
_OPEN_FOLDER = "/page/"


def presented_key(headers: Headers) -> str | None:
    """The key a request carries, if any."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key")


class ApiKeys:
    """Some keys, of which only hashes are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [self._digest(key) for key in keys]

    @staticmethod
    def _digest(key: str) -> bytes:
        return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()

    def __contains__(self, key: object) -> bool:
        digest = self._digest(str(key))
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)  # of all of them, so that time tells nothing about which it was


class ApiKeyMiddleware:
    """Lets requests with a key pass, and everyone to the page and the health checks."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._keys = ApiKeys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._may_pass(scope):
            error = ApiError(
                401,
                "an API key is needed: send `Authorization: Bearer <key>`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        path = scope["path"]
        if path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER):
            return True
        key = presented_key(Headers(scope=scope))
        return key is not None and key in self._keys
