"""What becomes of everything that is raised."""

from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException

from edge_infer.engine.errors import ContextLengthError, EngineError, RequestError
from edge_infer.engine.sampler import SamplerError
from edge_infer.grammar.errors import GrammarError
from edge_infer.server.async_engine import QueueFullError
from edge_infer.server.errors import ApiError, as_api_error, error_response
from edge_infer.server.parameter_error import ParameterError
from edge_infer.text.chat_template import ChatTemplateError
from edge_infer.text.tokenizer import TokenizerError


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ParameterError("x", param="n"), 400, "invalid_value"),
        (RequestError("x"), 400, "invalid_request"),
        (ContextLengthError(9, None, 8), 400, "context_length_exceeded"),
        (GrammarError("x"), 400, "invalid_grammar"),
        (ChatTemplateError("x"), 400, "chat_template_error"),
        (TokenizerError("x"), 400, "invalid_value"),
        (ApiError(404, "x", code="model_not_found"), 404, "model_not_found"),
        (HTTPException(405), 405, "method_not_allowed"),
        (QueueFullError(3, 7), 503, "queue_full"),
        (EngineError("x"), 500, "engine_error"),
        (SamplerError("x"), 500, "engine_error"),
        (ValueError("secret"), 500, "internal_error"),
        (KeyError("secret"), 500, "internal_error"),
    ],
)
def test_status_and_code(error: Exception, status: int, code: str) -> None:
    answer = as_api_error(error)
    assert (answer.status, answer.code) == (status, code)
    assert "secret" not in answer.message
    assert answer.type == ("server_error" if status >= 500 else "invalid_request_error")


def test_the_parameter_is_named() -> None:
    body = as_api_error(ParameterError("n is 0", param="n")).openai_body()
    assert body["error"]["param"] == "n"


def test_a_full_queue_says_when_to_come_back() -> None:
    assert error_response(QueueFullError(3, 7), "/v1/completions").headers["retry-after"] == "7"


def test_each_api_has_its_own_words() -> None:
    error = QueueFullError(3, 7)
    anthropic = json.loads(bytes(error_response(error, "/v1/messages").body))
    assert anthropic["type"] == "error"
    assert anthropic["error"]["type"] == "overloaded_error"
    assert anthropic["request_id"].startswith("req_")
    openai = json.loads(bytes(error_response(error, "/v1/messages_of_another").body))
    assert openai["error"]["code"] == "queue_full"
