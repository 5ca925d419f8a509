"""Server-sent events: a response that streams them and cancels when its client goes."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_infer.server.errors import as_api_error, error_response
from edge_infer.server.generating import cancelled_on_disconnect

DONE = b"data: [DONE]\n\n"

_log = logging.getLogger(__name__)


def sse_event(data: Any, event: str | None = None) -> bytes:
    """One event whose data is JSON."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = "" if event is None else f"event: {event}\n"
    return f"{head}data: {text}\n\n".encode()


def openai_error_event(error: BaseException) -> bytes:
    """The event that ends a stream in which something failed."""
    return sse_event(as_api_error(error).openai_body())


class EventStream(Response):
    """Streams `events`, encoded, as they come.

    Nothing is sent before the first of them, so that what fails until then has its own status.
    What fails later becomes one last event, made by `error_event`. When the client goes,
    `cancel` is called; it must make `events` end soon.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        cancel: Callable[[], None],
        *,
        headers: dict[str, str] | None = None,
        error_event: Callable[[BaseException], bytes] = openai_error_event,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.media_type = "text/event-stream"
        self.init_headers(
            {
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # nginx would collect the events
                **(headers or {}),
            }
        )
        self._events = events
        self._cancel = cancel
        self._error_event = error_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            async with cancelled_on_disconnect(receive, self._cancel):
                await self._send_all(scope, receive, send)
        finally:
            self._cancel()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            first = await anext(self._events, b"")
        except Exception as error:  # noqa: BLE001 - whatever it was, the client is told
            _log_fault(error)
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        await _send_piece(send, first)
        try:
            async for event in self._events:
                await _send_piece(send, event)
        except Exception as error:  # noqa: BLE001 - whatever it was, the client is told
            _log_fault(error)
            await _send_piece(send, self._error_event(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_piece(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _log_fault(error: BaseException) -> None:
    if as_api_error(error).status >= 500:
        _log.error("a request failed", exc_info=error)
