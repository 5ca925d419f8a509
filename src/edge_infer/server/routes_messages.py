"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from edge_infer.server.chat import ChatGeneration, encode_chat, start_chat
from edge_infer.server.errors import as_api_error
from edge_infer.server.generating import cancelled_on_disconnect
from edge_infer.server.limits import read_json
from edge_infer.server.messages.answer import MessageWriter, message_usage
from edge_infer.server.messages.request import (
    COUNT_FIELDS,
    MESSAGES_FIELDS,
    read_count_request,
    read_messages_request,
)
from edge_infer.server.messages.schemas import COUNT_RESPONSES, MESSAGE_RESPONSES
from edge_infer.server.openai_words import json_request
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.sse import EventStream, sse_event
from edge_infer.server.state import server_state

router = APIRouter()


@router.post(
    "/v1/messages",
    summary="Answer a conversation, as Anthropic's Messages API",
    response_class=Response,
    openapi_extra=json_request(MESSAGES_FIELDS.schema()),
    responses=MESSAGE_RESPONSES,
)
async def messages(request: Request) -> Response:
    """Answer a conversation, as Anthropic's Messages API."""
    state = server_state(request)
    asked = read_messages_request(state, await read_json(request))
    try:
        generation = await start_chat(state, asked.call)
    except ParameterError as error:
        raise error.renamed("].function.parameters", "].input_schema") from error
    writer = MessageWriter(state.model_id)
    if asked.stream:
        events = _stream(writer, generation)
        return EventStream(
            events, generation.cancel, headers=asked.headers, error_event=_error_event
        )
    async with generation, cancelled_on_disconnect(request.receive, generation.cancel):
        async for _, event in generation:
            writer.take(event)
    # When the client has gone nobody reads this; an answer without an end would be wrong.
    if writer.end is None:
        return Response(status_code=499)
    return JSONResponse(writer.message(_usage(generation)), headers=asked.headers)


@router.post(
    "/v1/messages/count_tokens",
    summary="The tokens of a conversation, as Anthropic's API counts them",
    response_class=Response,
    openapi_extra=json_request(COUNT_FIELDS.schema()),
    responses=COUNT_RESPONSES,
)
async def count_tokens(request: Request) -> Response:
    """The tokens of a conversation."""
    state = server_state(request)
    call, headers = read_count_request(state, await read_json(request))
    token_ids = await encode_chat(state, call)
    return JSONResponse({"input_tokens": len(token_ids)}, headers=headers)


async def _stream(writer: MessageWriter, generation: ChatGeneration) -> AsyncIterator[bytes]:
    started = False
    async with generation:
        async for _, event in generation:
            if not started:
                started = True
                for item in writer.start(_usage(generation)):
                    yield _sse(item)
            for item in writer.take(event):
                yield _sse(item)
        if writer.end is None:
            return  # cancelled: the client has gone, or the server goes
        for item in writer.finish(_usage(generation)):
            yield _sse(item)


def _sse(event: dict[str, Any]) -> bytes:
    return sse_event(event, event["type"])


def _error_event(error: BaseException) -> bytes:
    return _sse(as_api_error(error).anthropic_body())


def _usage(generation: ChatGeneration) -> dict[str, Any]:
    return message_usage(
        generation.prompt_tokens,
        generation.completion_tokens,
        generation.cached_tokens,
        generation.reasoning_tokens,
    )
