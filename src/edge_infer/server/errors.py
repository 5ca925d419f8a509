"""Every refusal and fault as one error object with a status, in OpenAI's or Anthropic's shape."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from edge_infer.engine.errors import EngineError
from edge_infer.engine.sampler import SamplerError
from edge_infer.server.async_engine import QueueFullError
from edge_infer.text.chat_template import ChatTemplateError
from edge_infer.text.tokenizer import TokenizerError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {404: "not_found", 405: "method_not_allowed"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """An answer that is an error: its HTTP status, stable code, and the parameter at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """OpenAI's class of the error."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, default)

    def openai_body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`."""
        fields = {"message": self.message, "type": self.type, "param": self.param}
        return {"error": {**fields, "code": self.code}}

    def anthropic_body(self, request_id: str | None = None) -> dict[str, Any]:
        """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""
        default = "api_error" if self.status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(self.status, default)
        return {
            "type": "error",
            "error": {"type": kind, "message": self.message},
            "request_id": request_id or f"req_{secrets.token_hex(12)}",
        }


def as_api_error(error: BaseException) -> ApiError:
    """The answer to whatever was raised.

    Refusals, which carry a code of their own, are the client's: 400. What is not known here is
    a fault of the server, and its message stays in the log.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "http_error")  # the framework's own
        return ApiError(error.status_code, error.detail, code=code, headers=error.headers)
    if isinstance(error, QueueFullError):
        headers = {"Retry-After": str(error.retry_after)}
        return ApiError(503, str(error), code=error.code, headers=headers)
    if isinstance(error, ChatTemplateError):
        return ApiError(400, str(error), code="chat_template_error", param="messages")
    if isinstance(error, TokenizerError):
        return ApiError(400, str(error), code="invalid_value")
    if isinstance(error, EngineError | SamplerError):
        return ApiError(500, str(error), code="engine_error")
    if isinstance(error, ValueError | TypeError):
        reason = getattr(error, "code", None)
        if isinstance(reason, str):
            return ApiError(400, str(error), code=reason, param=getattr(error, "param", None))
    return ApiError(500, "the server failed; its log says where", code="internal_error")


def error_response(error: BaseException, path: str) -> Response:
    """The response to an error, in the words of the API that `path` belongs to."""
    answer = as_api_error(error)
    anthropic = path == "/v1/messages" or path.startswith("/v1/messages/")
    body = answer.anthropic_body() if anthropic else answer.openai_body()
    return Response(
        json.dumps(body),
        status_code=answer.status,
        media_type="application/json",
        headers=answer.headers,
    )


_STRING = {"type": "string"}

ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _STRING,
                "type": _STRING,
                "param": {"type": ["string", "null"], "description": "path of the parameter"},
                "code": {**_STRING, "description": "stable; docs/server.md lists them"},
            },
        }
    },
}


def error_responses(
    *statuses: int, schema: dict[str, Any] = ERROR_SCHEMA
) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` of these error statuses."""
    reasons = {
        400: "The request cannot be served as asked",
        401: "The API key is missing or wrong",
        404: "There is no such model",
        408: "The body did not arrive in time",
        413: "The body is too long",
        415: "The body is not JSON",
        500: "The engine failed",
        501: "This model or build cannot do it",
        503: "Too many requests wait",
    }
    content = {"application/json": {"schema": schema}}
    return {status: {"description": reasons[status], "content": content} for status in statuses}
