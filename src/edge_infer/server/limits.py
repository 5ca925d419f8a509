"""Bodies of requests: read within a length, a time and a depth, as strict JSON."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from edge_infer.server.errors import ApiError
from edge_infer.server.state import server_state

MAX_BODY_SECONDS = 60.0
MAX_DEPTH = 128  # of nested arrays and objects
MAX_CONTAINERS = 100_000  # arrays and objects; checking more would hold everyone up

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object of a request's body. Raises ApiError.

    A body without a content type counts as JSON; a form does not.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        raise ApiError(
            415, f"the body is {kind}; it must be application/json", code="unsupported_media_type"
        )
    try:
        async with asyncio.timeout(MAX_BODY_SECONDS):
            raw = await _read(request, server_state(request).settings.max_body_bytes)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body did not arrive within {MAX_BODY_SECONDS:.0f} s",
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise ApiError(400, "the connection ended within the body", code="invalid_json") from None
    return parse_json(raw)


def parse_json(raw: bytes) -> dict[str, Any]:
    """A JSON object, without NaN, lone surrogates or endless structure. Raises ApiError."""
    try:
        body = json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise _invalid(f"more than {MAX_DEPTH} arrays and objects are nested") from None
    except ValueError as error:  # a JSONDecodeError, or a number with thousands of digits
        raise _invalid(str(error) if raw.strip() else "it is empty") from None
    if not isinstance(body, dict):
        raise ApiError(
            400, f"the body is a JSON {_kind(body)}; it must be an object", code="invalid_type"
        )
    _check_structure(body)
    if _SURROGATE.search(raw):
        _check_unicode(body)
    return body


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(f"{declared} bytes", limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large("longer", limit)
    return bytes(body)


def _too_large(length: str, limit: int) -> ApiError:
    # Closing spares reading the rest, which a kept connection would have to.
    return ApiError(
        413,
        f"the body is {length}; at most {limit} bytes are taken",
        code="request_too_large",
        headers={"Connection": "close"},
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _invalid(reason: str) -> ApiError:
    return ApiError(400, f"the body is not valid JSON: {reason}", code="invalid_json")


def _check_structure(body: dict[str, Any]) -> None:
    level: list[Any] = [body]
    count = 1
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
        count += len(level)
        if count > MAX_CONTAINERS:
            raise ApiError(
                413,
                f"the body has more than {MAX_CONTAINERS} arrays and objects",
                code="request_too_large",
            )
    raise _invalid(f"more than {MAX_DEPTH} arrays and objects are nested")


def _check_unicode(body: dict[str, Any]) -> None:
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _invalid("a \\u escape is half of a surrogate pair") from None


def _kind(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
