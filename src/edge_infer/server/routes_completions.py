"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from edge_infer.engine.sampler import Sampled
from edge_infer.engine.sequence import Chunk
from edge_infer.server.chat_schemas import generation_responses
from edge_infer.server.completion_batch import CompletionBatch, start_completions
from edge_infer.server.completion_request import (
    COMPLETION_REQUEST_SCHEMA,
    CompletionRequest,
    read_completion_request,
)
from edge_infer.server.generating import cancelled_on_disconnect
from edge_infer.server.limits import read_json
from edge_infer.server.openai_words import (
    HEAD_PROPERTIES,
    USAGE_SCHEMA,
    answer_head,
    json_request,
    token_text,
    usage,
)
from edge_infer.server.sse import DONE, EventStream, sse_event
from edge_infer.server.state import ServerState, server_state
from edge_infer.text.tokenizer import Tokenizer

router = APIRouter()

_LOGPROBS_SCHEMA: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {
        "tokens": {"type": "array", "items": {"type": "string"}},
        "token_logprobs": {"type": "array", "items": {"type": "number"}},
        "top_logprobs": {"type": "array", "items": {"type": "object"}},
        "text_offset": {"type": "array", "items": {"type": "integer"}},
    },
}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices"],
    "properties": {
        **HEAD_PROPERTIES,
        "object": {"enum": ["text_completion"]},
        "choices": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "text", "logprobs", "finish_reason"],
                "properties": {
                    "index": {"type": "integer"},
                    "text": {"type": "string"},
                    "logprobs": _LOGPROBS_SCHEMA,
                    "finish_reason": {"enum": ["stop", "length", None]},
                    "stop_reason": {"type": ["string", "integer", "null"]},
                },
            },
        },
        "usage": {"anyOf": [USAGE_SCHEMA, {"type": "null"}]},
    },
}


@router.post(
    "/v1/completions",
    summary="Complete a text",
    response_class=Response,
    openapi_extra=json_request(COMPLETION_REQUEST_SCHEMA),
    responses=generation_responses(_SCHEMA, _SCHEMA),
)
async def completions(request: Request) -> Response:
    """Complete a text."""
    state = server_state(request)
    asked = read_completion_request(state, await read_json(request))
    batch = await start_completions(state, asked)
    answer = _Answer(state, asked, batch)
    if asked.stream:
        return EventStream(_stream(answer, asked, batch), batch.cancel, headers=asked.headers)
    try:
        async with cancelled_on_disconnect(request.receive, batch.cancel):
            async for index, chunk in batch.chunks():
                answer.take(index, chunk)
    finally:
        batch.cancel()
    # When the client has gone nobody reads this; an answer without an end would be wrong.
    if not answer.complete:
        return Response(status_code=499)
    return JSONResponse(answer.body(), headers=asked.headers)


async def _stream(
    answer: _Answer, asked: CompletionRequest, batch: CompletionBatch
) -> AsyncIterator[bytes]:
    async for index, chunk in batch.chunks():
        yield sse_event(answer.chunk(index, chunk))
    if not answer.complete:
        return  # cancelled: the client has gone, or the server goes
    if asked.include_usage:
        yield sse_event({**answer.head, "choices": [], "usage": answer.usage()})
    yield DONE


class _Answer:
    """Chunks of all answers as one `text_completion`, or as one for each."""

    def __init__(
        self, state: ServerState, asked: CompletionRequest, batch: CompletionBatch
    ) -> None:
        self.head = answer_head(state, "cmpl", "text_completion")
        self._asked = asked
        self._batch = batch
        self._state = state
        count = len(asked.prompts) * asked.n
        self._tokenizer = state.engine.engine.tokenizer
        echoed = [self._echo(index) for index in range(count)]
        self._texts = [[text] for text in echoed]
        self._unsent = echoed  # what the next chunk of a stream begins with
        self._offsets = [len(text) for text in echoed]
        self._logprobs: list[list[Sampled]] = [[] for _ in range(count)]
        self._reasons: list[str | None] = [None] * count
        self._completion_tokens = 0

    @property
    def complete(self) -> bool:
        """Whether every answer has ended by itself."""
        return None not in self._reasons

    def take(self, index: int, chunk: Chunk) -> None:
        """Add a chunk of answer `index`."""
        self._texts[index].append(chunk.text)
        self._logprobs[index].extend(chunk.logprobs or ())
        self._reasons[index] = chunk.finish_reason
        self._completion_tokens += len(chunk.token_ids)

    def body(self) -> dict[str, Any]:
        """The response's body."""
        choices = [
            self._choice(index, "".join(texts), self._logprobs[index])
            for index, texts in enumerate(self._texts)
        ]
        return {**self.head, "choices": choices, "usage": self.usage()}

    def chunk(self, index: int, chunk: Chunk) -> dict[str, Any]:
        """A chunk of a stream."""
        self._reasons[index] = chunk.finish_reason
        self._completion_tokens += len(chunk.token_ids)
        text, self._unsent[index] = self._unsent[index] + chunk.text, ""
        choice = self._choice(index, text, chunk.logprobs or [])
        tail = {"usage": None} if self._asked.include_usage else {}
        return {**self.head, "choices": [choice], **tail}

    def usage(self) -> dict[str, Any]:
        """The usage of all answers."""
        batch = self._batch
        return usage(batch.prompt_tokens, self._completion_tokens, batch.cached_tokens)

    def _echo(self, index: int) -> str:
        if not self._asked.echo:
            return ""
        prompt = self._asked.prompts[index // self._asked.n]
        if isinstance(prompt, str):
            return prompt
        return self._state.tokenizer.decode(prompt, skip_special_tokens=False)

    def _choice(self, index: int, text: str, logprobs: list[Sampled]) -> dict[str, Any]:
        reason = self._reasons[index]
        return {
            "index": index,
            "text": text,
            "logprobs": None
            if self._asked.sampling.logprobs is None
            else self._logprobs_object(index, logprobs),
            "finish_reason": reason,
            "stop_reason": None if reason is None else self._batch.stop_reason(index),
        }

    def _logprobs_object(self, index: int, items: list[Sampled]) -> dict[str, Any]:
        tokenizer: Tokenizer = self._state.tokenizer
        tokens, offsets = [], []
        for item in items:
            tokens.append(token_text(tokenizer, item.token_id))
            offsets.append(self._offsets[index])
            self._offsets[index] += len(tokens[-1])
        return {
            "tokens": tokens,
            "token_logprobs": [item.logprob for item in items],
            "top_logprobs": [
                {
                    token_text(tokenizer, token): logprob
                    for token, logprob in item.top_logprobs or ()
                }
                for item in items
            ],
            "text_offset": offsets,
        }
