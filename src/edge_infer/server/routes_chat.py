"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from edge_infer.server.chat import ChatGeneration, start_chat
from edge_infer.server.chat_answer import ChatAnswer, ChatStream
from edge_infer.server.chat_request import CHAT_REQUEST_SCHEMA, ChatRequest, read_chat_request
from edge_infer.server.chat_schemas import CHAT_RESPONSES
from edge_infer.server.generating import cancelled_on_disconnect
from edge_infer.server.limits import read_json
from edge_infer.server.openai_words import json_request, usage
from edge_infer.server.sse import DONE, EventStream, sse_event
from edge_infer.server.state import ServerState, server_state

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    summary="Answer a conversation",
    response_class=Response,
    openapi_extra=json_request(CHAT_REQUEST_SCHEMA),
    responses=CHAT_RESPONSES,
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    state = server_state(request)
    asked = read_chat_request(state, await read_json(request))
    generation = await start_chat(state, asked.call)
    if asked.stream:
        events = _stream(state, asked, generation)
        return EventStream(events, generation.cancel, headers=asked.headers)
    async with generation, cancelled_on_disconnect(request.receive, generation.cancel):
        answer = ChatAnswer(state, asked.call.n)
        async for index, event in generation:
            answer.take(index, event)
    # When the client has gone nobody reads this; an answer without an end would be wrong.
    if not answer.complete:
        return Response(status_code=499)
    return JSONResponse(answer.body(_usage(generation)), headers=asked.headers)


async def _stream(
    state: ServerState, asked: ChatRequest, generation: ChatGeneration
) -> AsyncIterator[bytes]:
    stream = ChatStream(state, asked.call.n)
    started = False
    async with generation:
        async for index, event in generation:
            chunks = stream.take(index, event)
            if not started:
                chunks = [*stream.start(), *chunks]
                started = True
            for chunk in chunks:
                if asked.include_usage or asked.continuous_usage:
                    chunk["usage"] = _usage(generation) if asked.continuous_usage else None
                yield sse_event(chunk)
        if not stream.complete:
            return  # cancelled: the client has gone, or the server goes
        if asked.include_usage:
            yield sse_event(stream.last(_usage(generation)))
        yield DONE


def _usage(generation: ChatGeneration) -> dict[str, Any]:
    return usage(
        generation.prompt_tokens,
        generation.completion_tokens,
        generation.cached_tokens,
        generation.reasoning_tokens,
    )
