"""The load client: framing, events with arrival times, and leaving early."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from harness.http_client import Exchange, HangUp, ResponseError, exchange, parse, request_bytes

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def done(*segments: bytes) -> Exchange:
    return Exchange(0.0, 9.0, [(float(i), data) for i, data in enumerate(segments)], False, None)


def test_an_event_arrives_with_the_segment_that_completes_it() -> None:
    stream = [
        HEAD + chunk(b"data: one\n\n"),
        chunk(b"data: tw"),
        chunk(b"o\n\ndata: three\n\n") + b"0\r\n\r\n",
    ]
    response = parse(done(*stream))
    assert response.events == [(0.0, b"one"), (2.0, b"two"), (2.0, b"three")]


def test_a_chunk_that_is_split_between_segments_is_whole_again() -> None:
    raw = HEAD + chunk(b"data: hello\n\n") + b"0\r\n\r\n"
    response = parse(done(*(raw[i : i + 1] for i in range(len(raw)))))
    assert [data for _, data in response.events] == [b"hello"]
    assert response.events[0][0] == raw.index(b"hello") + len(b"hello\n\n") - 1


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Le", "no complete header"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", "3 bytes, announced 5"),
        (b"SSH-2.0\r\n\r\n", "no HTTP status line"),
        (HEAD + chunk(b"data: one\n\n"), "without its last chunk"),
        (HEAD + b"5\r\nab", "cut off"),
        (HEAD + chunk(b"data: one\n") + b"0\r\n\r\n", "last event is cut off"),
    ],
)
def test_what_is_incomplete_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(ResponseError, match=message):
        parse(done(raw))


def test_a_failed_connection_is_refused() -> None:
    with pytest.raises(ResponseError, match="no connection"):
        parse(Exchange(0.0, 0.0, [], False, "no connection: refused"))


async def ask(timeout: float, hang_up: HangUp | None) -> Exchange:
    """Ask a server that sends a byte every 10 ms for two seconds."""
    ended = asyncio.Event()

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        request = request_bytes("GET", "127.0.0.1", port, "/", None)
        got = await exchange("127.0.0.1", port, request, timeout_seconds=timeout, hang_up=hang_up)
        await ended.wait()
    return got


@pytest.mark.parametrize("abort", [False, True])
def test_a_client_leaves_after_so_many_segments(abort: bool) -> None:
    got = asyncio.run(ask(10.0, HangUp(after_segments=2, abort=abort)))
    assert got.hung_up
    assert got.error is None
    assert len(got.segments) == 2


def test_a_client_leaves_after_some_time() -> None:
    got = asyncio.run(ask(10.0, HangUp(after_seconds=0.05)))
    assert got.hung_up
    assert 0.04 < got.ended - got.sent < 1.5


def test_an_answer_that_takes_too_long_is_an_error() -> None:
    got = asyncio.run(ask(0.1, None))
    assert got.error == "no complete answer after 0.1 s"
