"""Plain requests to the server, byte by byte where a test needs that."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object, which has all of its fields."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def request(
    base_url: str,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send a request; a body that is not bytes is sent as JSON."""
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=TIMEOUT_SECONDS)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    sent = {} if raw is None else {"content-type": "application/json"}
    try:
        method = method or ("GET" if raw is None else "POST")
        connection.request(method, path, raw, {**sent, **(headers or {})})
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def events(answer: Answer) -> list[str]:
    """The data of a stream's events."""
    blocks = answer.body.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


def open_request(base_url: str, path: str, body: Any) -> socket.socket:
    """Send a JSON request and leave its connection open, unread."""
    address = urlsplit(base_url)
    assert address.hostname is not None
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(raw)}\r\n\r\n"
    opened = socket.create_connection((address.hostname, address.port or 80), TIMEOUT_SECONDS)
    opened.sendall(head.encode() + raw)
    return opened
