"""A minimal HTTP/1.1 client for load: it notes when bytes arrive and parses them afterwards.

On two cores the client competes with the server it measures, so while a request runs each
segment costs one clock reading and one list append. Framing, server-sent events and JSON are
taken apart by `parse` once the load is over.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CHUNK_END = b"\r\n"
HEADER_END = b"\r\n\r\n"


class ResponseError(ValueError):
    """What came over the wire is not a complete HTTP response of the expected kind."""


@dataclass(frozen=True)
class HangUp:
    """When the client leaves before the answer is complete.

    Attributes:
        after_seconds: since the request was sent, or None.
        after_segments: once that many pieces have arrived, or None.
        abort: end with a reset instead of an orderly close.
    """

    after_seconds: float | None = None
    after_segments: int | None = None
    abort: bool = False


@dataclass(frozen=True)
class Exchange:
    """One request as it went over the wire; times are `time.perf_counter` seconds.

    Attributes:
        segments: arrival time and bytes of everything received, in order.
        hung_up: the client left before the server had closed.
        error: why the connection failed, or None.
    """

    sent: float
    ended: float
    segments: list[tuple[float, bytes]]
    hung_up: bool
    error: str | None


@dataclass(frozen=True)
class Response:
    """A complete response; `events` holds the data of server-sent events with arrival times."""

    status: int
    headers: dict[str, str]
    body: bytes
    events: list[tuple[float, bytes]]

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ResponseError: if it is none.
        """
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise ResponseError(f"status {self.status}, no JSON: {self.body[:200]!r}") from error


class _Recorder(asyncio.Protocol):
    """Writes one request, keeps what arrives, and may leave early."""

    def __init__(self, request: bytes, hang_up: HangUp | None) -> None:
        self._request = request
        self._hang_up = hang_up
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.sent = 0.0
        self.segments: list[tuple[float, bytes]] = []
        self.hung_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.sent = time.perf_counter()
        transport.write(self._request)
        if self._hang_up is not None and self._hang_up.after_seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._hang_up.after_seconds, self.leave)

    def data_received(self, data: bytes) -> None:
        self.segments.append((time.perf_counter(), bytes(data)))
        if self._hang_up is not None and self._hang_up.after_segments == len(self.segments):
            self.leave()

    def leave(self) -> None:
        """Close the connection from this side."""
        if self._transport is None or self.done.done():
            return
        self.hung_up = True
        if self._hang_up is not None and self._hang_up.abort:
            self._transport.abort()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.done.done():
            self.done.set_result(exc)


def request_bytes(method: str, host: str, port: int, path: str, body: bytes | None) -> bytes:
    """Return a request that asks the server to close the connection after its answer."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + (body or b"")


async def exchange(
    host: str,
    port: int,
    request: bytes,
    *,
    timeout_seconds: float,
    hang_up: HangUp | None = None,
) -> Exchange:
    """Send one request over a connection of its own and return all that came back."""
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    try:
        _, recorder = await loop.create_connection(lambda: _Recorder(request, hang_up), host, port)
    except OSError as error:
        return Exchange(begun, time.perf_counter(), [], False, f"no connection: {error}")
    failure: str | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            lost = await asyncio.shield(recorder.done)
        failure = f"connection lost: {lost}" if lost is not None else None
    except TimeoutError:
        failure = f"no complete answer after {timeout_seconds:g} s"
        recorder.leave()
        await recorder.done
    return Exchange(
        recorder.sent, time.perf_counter(), recorder.segments, recorder.hung_up, failure
    )


def parse(done: Exchange) -> Response:
    """Take a finished exchange apart.

    Raises:
        ResponseError: if the connection failed or the response is incomplete or malformed.
    """
    raw = b"".join(data for _, data in done.segments)
    if done.error is not None:
        raise ResponseError(f"{done.error}; received {len(raw)} bytes")
    head_end = raw.find(HEADER_END)
    if head_end < 0:
        raise ResponseError(f"no complete header in {len(raw)} bytes")
    status, headers = _head(raw[:head_end])
    start = head_end + len(HEADER_END)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        pieces = list(_chunks(raw, start))
    else:
        length = headers.get("content-length")
        if length is not None and len(raw) - start != int(length):
            raise ResponseError(f"body has {len(raw) - start} bytes, announced {length}")
        pieces = [(start, len(raw) - start)]
    body = b"".join(raw[at : at + size] for at, size in pieces)
    events: list[tuple[float, bytes]] = []
    if headers.get("content-type", "").startswith("text/event-stream"):
        events = _events(body, pieces, done.segments)
    return Response(status, headers, body, events)


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    """Return status and headers, names in lower case."""
    first, *lines = raw.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ResponseError(f"no HTTP status line: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _chunks(raw: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield place and size of every chunk's data; the last chunk must be there."""
    while True:
        line_end = raw.find(CHUNK_END, at)
        if line_end < 0:
            raise ResponseError("the chunked body ends without its last chunk")
        text = raw[at:line_end].split(b";")[0].strip()
        try:
            size = int(text, 16)
        except ValueError as error:
            raise ResponseError(f"chunk size is {text[:20]!r}") from error
        at = line_end + len(CHUNK_END)
        if size == 0:
            return
        if raw[at + size : at + size + len(CHUNK_END)] != CHUNK_END:
            raise ResponseError(f"a chunk of {size} bytes is cut off")
        yield at, size
        at += size + len(CHUNK_END)


def _events(
    body: bytes, pieces: list[tuple[int, int]], segments: list[tuple[float, bytes]]
) -> list[tuple[float, bytes]]:
    """Return the events' data with the arrival time of the segment that completed each.

    Lines must end in a bare line feed, as both servers write them; JSON escapes carriage returns.
    """
    if b"\r" in body:
        raise ResponseError("the event stream has carriage returns")
    body_ends, total = [], 0
    for _, size in pieces:
        total += size
        body_ends.append(total)
    raw_ends, total = [], 0
    for _, data in segments:
        total += len(data)
        raw_ends.append(total)

    def arrival(body_end: int) -> float:
        piece = bisect_left(body_ends, body_end)
        at, size = pieces[piece]
        raw_end = at + size - (body_ends[piece] - body_end)
        return segments[bisect_left(raw_ends, raw_end)][0]

    events: list[tuple[float, bytes]] = []
    start = 0
    for block in body.split(b"\n\n"):
        start += len(block) + 2
        data = b"\n".join(
            line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
        )
        if data:
            if start > len(body):
                raise ResponseError(f"the last event is cut off: {block[:80]!r}")
            events.append((arrival(start), data))
    return events
