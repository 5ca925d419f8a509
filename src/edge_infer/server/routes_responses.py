"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from edge_infer.server.chat import ChatGeneration, start_chat
from edge_infer.server.errors import ApiError
from edge_infer.server.generating import cancelled_on_disconnect
from edge_infer.server.limits import read_json
from edge_infer.server.openai_words import json_request
from edge_infer.server.parameter_error import ParameterError
from edge_infer.server.responses.answer import ResponseWriter, response_usage
from edge_infer.server.responses.request import (
    RESPONSES_REQUEST_SCHEMA,
    ResponsesRequest,
    read_responses_request,
)
from edge_infer.server.responses.schemas import RESPONSES_RESPONSES
from edge_infer.server.sse import EventStream, sse_event
from edge_infer.server.state import ServerState, server_state
from edge_infer.text.chat_template import ChatTemplateError

router = APIRouter()


@router.post(
    "/v1/responses",
    summary="Answer a conversation, as OpenAI's Responses API",
    response_class=Response,
    openapi_extra=json_request(RESPONSES_REQUEST_SCHEMA),
    responses=RESPONSES_RESPONSES,
)
async def responses(request: Request) -> Response:
    """Answer a conversation, as OpenAI's Responses API."""
    state = server_state(request)
    asked = read_responses_request(state, await read_json(request))
    generation = await _start(state, asked)
    writer = ResponseWriter(state.model_id, state.tokenizer, asked.echo)
    if asked.stream:
        return EventStream(
            _stream(writer, generation),
            generation.cancel,
            headers=asked.headers,
            error_event=lambda error: _sse(writer.fail(error)),
        )
    async with generation, cancelled_on_disconnect(request.receive, generation.cancel):
        async for _, event in generation:
            writer.take(event)
    # When the client has gone nobody reads this; an answer without an end would be wrong.
    if writer.end is None:
        return Response(status_code=499)
    return JSONResponse(writer.finish(_usage(generation))["response"], headers=asked.headers)


async def _start(state: ServerState, asked: ResponsesRequest) -> ChatGeneration:
    try:
        return await start_chat(state, asked.call)
    except ChatTemplateError as error:
        raise ApiError(400, str(error), code="chat_template_error", param="input") from error
    except ParameterError as error:
        raise error.renamed("].function.parameters", "].parameters") from error


async def _stream(writer: ResponseWriter, generation: ChatGeneration) -> AsyncIterator[bytes]:
    started = False
    async with generation:
        async for _, event in generation:
            if not started:
                started = True
                for item in writer.start():
                    yield _sse(item)
            for item in writer.take(event):
                yield _sse(item)
        if writer.end is not None:  # else cancelled: the client has gone, or the server goes
            yield _sse(writer.finish(_usage(generation)))


def _sse(event: dict[str, Any]) -> bytes:
    return sse_event(event, event["type"])


def _usage(generation: ChatGeneration) -> dict[str, Any]:
    return response_usage(
        generation.prompt_tokens,
        generation.completion_tokens,
        generation.cached_tokens,
        generation.reasoning_tokens,
    )
