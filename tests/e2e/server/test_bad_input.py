"""Whatever is sent, the answer says what is wrong with it, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.e2e.server.conftest import RunningServer
from tests.e2e.server.plain_http import request

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 1, **fields}


@pytest.mark.parametrize(
    ("fields", "param", "code", "says"),
    [
        ({"temperature": -1}, "temperature", "invalid_value", "at least 0.0"),
        ({"temperature": "hot"}, "temperature", "invalid_type", "a number"),
        ({"temperature": True}, "temperature", "invalid_type", "a number"),
        ({"temperature": 1e9}, "temperature", "invalid_value", "1000"),
        ({"top_p": 0}, "top_p", "invalid_value", "more than 0"),
        ({"top_k": -2}, "top_k", "invalid_value", "-1"),
        ({"top_k": 1.5}, "top_k", "invalid_type", "an integer"),
        ({"n": 0}, "n", "invalid_value", "1 to 128"),
        ({"n": 10**30}, "n", "invalid_value", "1 to 128"),
        ({"n": True}, "n", "invalid_type", "an integer"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value", "1 to"),
        ({"max_tokens": -5}, "max_tokens", "invalid_value", "-5"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value", "one"),
        ({"min_tokens": 2}, "min_tokens", "invalid_value", "max_tokens"),
        ({"seed": "x"}, "seed", "invalid_type", "an integer"),
        ({"seed": 2**64}, "seed", "invalid_value", str(2**64 - 1)),
        ({"stop": 3}, "stop", "invalid_type", "a string or an array"),
        ({"stop": ["a"] * 65}, "stop", "invalid_value", "at most 64"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value", "at least 1"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value", "token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value", "100"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias", "invalid_value", "49152"),
        ({"stop_token_ids": [49152]}, "stop_token_ids", "invalid_value", "49152"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value", "20"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value", "logprobs"),
        ({"stream": "yes"}, "stream", "invalid_type", "true or false"),
        ({"stream_options": {}, "stream": 1}, "stream", "invalid_type", "true or false"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value", "stream"),
        ({"messages": []}, "messages", "invalid_value", "at least 1"),
        ({"messages": "hi"}, "messages", "invalid_type", "an array"),
        ({"messages": [{}]}, "messages[0].role", "missing_required_parameter", "missing"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_type", "an object"),
        ({"messages": [{"role": "ai"}]}, "messages[0].role", "invalid_value", "assistant"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "invalid_type",
            "null",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            "unsupported_parameter",
            "text only",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value", "needs tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter", ""),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value", "json"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
            "missing",
        ),
        (
            {"guided_regex": "a", "guided_choice": ["a"]},
            "guided_choice",
            "invalid_value",
            "one constraint",
        ),
        ({"temprature": 1}, "temprature", "unknown_parameter", "temprature"),
        ({"functions": []}, "functions", "unsupported_parameter", "tools"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter", "audio"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter", "text"),
        ({"store": True}, "store", "unsupported_parameter", "stored"),
        ({"best_of": 2}, "best_of", "unsupported_parameter", "use n"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_parameter", "reason"),
        (
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs.messages",
            "invalid_value",
            "may set",
        ),
    ],
)
def test_a_chat_parameter(
    server: RunningServer, fields: dict[str, Any], param: str, code: str, says: str
) -> None:
    answer = request(server.base_url, CHAT, chat(**fields))
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert answer.error["code"] == code
    assert answer.error["type"] == "invalid_request_error"
    assert says in answer.error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt[0]", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": [-1]}, "prompt[0]", "invalid_value"),
        ({"prompt": {"a": 1}}, "prompt", "invalid_type"),
        ({"prompt": ["a"] * 257}, "prompt", "invalid_value"),
        ({"prompt": "a", "suffix": "b"}, "suffix", "unsupported_parameter"),
        ({"prompt": "a", "best_of": 3}, "best_of", "unsupported_parameter"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo", "unsupported_parameter"),
    ],
)
def test_a_completion_parameter(
    server: RunningServer, fields: dict[str, Any], param: str, code: str
) -> None:
    answer = request(server.base_url, TEXT, fields)
    assert answer.status == 400, answer.body
    assert (answer.error["param"], answer.error["code"]) == (param, code)


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/embeddings", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"\xff{}", "invalid_json"),
        (b'{"prompt": "\xc3\x28"}', "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b'{"temperature": -Infinity}', "invalid_json"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "invalid_json"),
        (b'{"prompt": "\\ud800"}', "invalid_json"),
        (b'{"metadata": ' + b"[" * 100_000, "invalid_json"),
        (b'{"metadata": ' + b"[" * 500 + b"]" * 500 + b"}", "invalid_json"),
        (b"[]", "invalid_type"),
        (b"3", "invalid_type"),
        (b'"text"', "invalid_type"),
        (b"null", "invalid_type"),
    ],
)
def test_a_body_that_is_no_object(server: RunningServer, path: str, body: bytes, code: str) -> None:
    answer = request(server.base_url, path, body)
    assert answer.status == 400, answer.body
    assert answer.error["code"] == code


def test_a_number_that_overflows(server: RunningServer) -> None:
    answer = request(server.base_url, CHAT, b'{"messages": [], "temperature": 1e999}')
    assert answer.status == 400


def test_context_overflow_is_the_same_everywhere(server: RunningServer) -> None:
    limit = request(server.base_url, "/v1/models").json["data"][0]["max_model_len"]
    prompt = [100] * limit
    text = " a" * (limit + 10)
    for path, body in (
        (TEXT, {"prompt": prompt}),
        (TEXT, {"prompt": prompt, "stream": True}),
        (TEXT, {"prompt": [[100], prompt]}),
        (TEXT, {"prompt": [100] * (limit - 4), "max_tokens": 5}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        (CHAT, {"messages": [{"role": "user", "content": text}], "stream": True}),
        (CHAT, {"messages": HELLO, "max_tokens": limit}),
        ("/v1/embeddings", {"input": prompt}),
    ):
        answer = request(server.base_url, path, body)
        assert answer.status == 400, (path, answer.body[:200])
        assert answer.error["code"] == "context_length_exceeded"
        assert f"holds {limit} tokens" in answer.error["message"]


def test_an_empty_prompt(server: RunningServer) -> None:
    answer = request(server.base_url, TEXT, {"prompt": ""})
    assert answer.status == 400
    assert "no tokens" in answer.error["message"]


def test_a_message_without_content_is_refused(server: RunningServer) -> None:
    answer = request(server.base_url, CHAT, {"messages": [{"role": "user", "content": None}]})
    assert answer.status == 400
    assert answer.error["code"] == "missing_required_parameter"
    assert answer.error["param"] == "messages[0].content"


def test_roles_in_any_order(server: RunningServer) -> None:
    roles = ["assistant", "user", "user", "system", "tool", "developer", "assistant"]
    messages = [{"role": role, "content": "x", "tool_call_id": "1"} for role in roles]
    answer = request(server.base_url, CHAT, chat(messages=messages))
    assert answer.status in (200, 400), answer.body


def test_another_model(server: RunningServer) -> None:
    for path in (CHAT, TEXT):
        body = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
        answer = request(server.base_url, path, {"model": "gpt-4", **body})
        assert answer.status == 404
        assert answer.error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
def test_routes_that_are_not_there(
    server: RunningServer, method: str, path: str, status: int, code: str
) -> None:
    answer = request(server.base_url, path, method=method)
    assert answer.status == status
    assert answer.error["code"] == code


def test_a_form_is_not_json(server: RunningServer) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = request(server.base_url, CHAT, b"a=b", headers=headers)
    assert answer.status == 415
    assert answer.error["code"] == "unsupported_media_type"


def test_nothing_was_left_behind(server: RunningServer) -> None:
    status = request(server.base_url, "/v1/status").json
    assert status["requests"] == {"running": 0, "waiting": 0}
    assert status["kv_cache"]["used_bytes"] == 0
    answer = request(server.base_url, CHAT, chat(temperature=0, max_tokens=8))
    assert answer.status == 200
    assert json.loads(answer.body)["choices"][0]["message"]["content"]
