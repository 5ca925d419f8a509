"""The stream of events: what is sent when, also when something fails or the client goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from edge_infer.engine.errors import ContextLengthError, EngineError
from edge_infer.server.sse import EventStream, sse_event


class Client:
    """An ASGI client that stays until it is told to go."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def run(events: AsyncIterator[bytes], cancelled: list[bool] | None = None) -> Client:
    async def main() -> Client:
        client = Client()
        calls = [] if cancelled is None else cancelled
        stream = EventStream(events, lambda: calls.append(True))
        await stream({"type": "http", "path": "/v1/completions"}, client.receive, client.send)
        return client

    return asyncio.run(main())


def test_an_event_is_one_line_of_data() -> None:
    assert sse_event({"text": "a\nb\u2028é"}) == 'data: {"text":"a\\nb\u2028é"}\n\n'.encode()
    assert sse_event({}, "stop") == b"event: stop\ndata: {}\n\n"


def test_events_are_sent_as_they_come() -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    client = run(events())
    assert client.sent[0]["status"] == 200
    headers = dict(client.sent[0]["headers"])
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert [message["body"] for message in client.sent[1:]] == [b"one", b"two", b""]
    assert client.sent[-1]["more_body"] is False


def test_a_failure_before_the_first_event_has_its_status() -> None:
    async def events() -> AsyncIterator[bytes]:
        raise ContextLengthError(9, None, 8)
        yield b""

    client = run(events())
    assert client.sent[0]["status"] == 400
    assert b"context_length_exceeded" in client.body


def test_a_failure_later_is_the_last_event() -> None:
    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise EngineError("a step failed")

    client = run(events())
    assert client.sent[0]["status"] == 200
    assert client.body.startswith(b'data: 1\n\ndata: {"error":{"message":"a step failed"')
    assert client.body.endswith(b"\n\n")
    assert b"[DONE]" not in client.body


def test_a_client_that_goes_cancels() -> None:
    async def main() -> list[str]:
        client, told, order = Client(), asyncio.Event(), []

        async def events() -> AsyncIterator[bytes]:
            yield b"one"
            order.append("going")
            client.gone.set()
            await told.wait()
            order.append("ended")

        def cancel() -> None:
            order.append("cancel")
            told.set()

        stream = EventStream(events(), cancel)
        await asyncio.wait_for(
            stream({"type": "http", "path": "/"}, client.receive, client.send), 5
        )
        return order

    assert asyncio.run(main())[:3] == ["going", "cancel", "ended"]
