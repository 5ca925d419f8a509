"""Read answers of /v1/completions and /v1/chat/completions, streamed or whole."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from harness.http_client import Exchange, Response, ResponseError, parse


@dataclass(frozen=True)
class Reply:
    """A complete answer.

    Attributes:
        texts: of each choice, a chat's reasoning included.
        reasons: finish_reason of each choice.
        arrivals: when each event with text came, `time.perf_counter` seconds; empty where the
            answer was not streamed.
    """

    texts: list[str]
    reasons: list[str | None]
    usage: dict[str, Any]
    arrivals: list[float]


def read_reply(done: Exchange, stream: bool) -> Reply:
    """Return an answer.

    Raises:
        ResponseError: if it is not complete, or none at all.
    """
    return read_stream(done) if stream else read_whole(done)


def read_stream(done: Exchange) -> Reply:
    """Return a streamed answer.

    Raises:
        ResponseError: if it is not a stream of completion events that ends as it should.
    """
    response = _ok(done)
    if not response.events or response.events[-1][1] != b"[DONE]":
        raise ResponseError(f"the stream does not end with [DONE]: {response.body[-300:]!r}")
    texts: dict[int, list[str]] = {}
    reasons: dict[int, str | None] = {}
    arrivals: list[float] = []
    usage: dict[str, Any] | None = None
    for arrival, data in response.events[:-1]:
        try:
            event = json.loads(data)
            if "error" in event:
                raise ResponseError(f"error event: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                index, text = choice["index"], _text(choice, "delta")
                reasons[index] = choice.get("finish_reason") or reasons.get(index)
                texts.setdefault(index, []).append(text)
                if text:
                    arrivals.append(arrival)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ResponseError):
                raise
            raise ResponseError(f"event {data[:200]!r} is no completion ({error!r})") from error
    if usage is None:
        raise ResponseError("the stream has no usage")
    order = sorted(texts)
    return Reply(["".join(texts[i]) for i in order], [reasons[i] for i in order], usage, arrivals)


def read_whole(done: Exchange) -> Reply:
    """Return an answer that came in one piece.

    Raises:
        ResponseError: if it is none.
    """
    response = _ok(done)
    body = response.json()
    try:
        choices = sorted(body["choices"], key=lambda choice: int(choice["index"]))
        texts = [_text(choice, "message") for choice in choices]
        return Reply(texts, [choice["finish_reason"] for choice in choices], body["usage"], [])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResponseError(f"not a completion ({error!r}): {response.body[:300]!r}") from error


def _ok(done: Exchange) -> Response:
    response = parse(done)
    if response.status != 200:
        raise ResponseError(f"status {response.status}: {response.body[:300]!r}")
    return response


def _text(choice: dict[str, Any], message: str) -> str:
    """Return a choice's text; a chat keeps it in `message`, there with its reasoning."""
    if message not in choice:
        return choice.get("text") or ""
    said = choice[message]
    return (said.get("reasoning_content") or "") + (said.get("content") or "")
