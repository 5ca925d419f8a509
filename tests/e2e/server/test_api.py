"""What the clients' own tests do not reach: streams on the wire, keys, limits, the process."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.e2e.server.conftest import RunningServer
from tests.e2e.server.plain_http import events, open_request, request

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True}


def status(server: RunningServer) -> Any:
    return request(server.base_url, "/v1/status").json


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_stream_on_the_wire(server: RunningServer) -> None:
    body = {"messages": QUESTION, "temperature": 0, "n": 2, "max_tokens": 6, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = request(server.base_url, CHAT, {**body, "stream_options": options})
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(answer)
    assert done == "[DONE]"
    parsed = [json.loads(chunk) for chunk in chunks]
    assert len({chunk["id"] for chunk in parsed}) == 1
    assert [c["choices"][0]["delta"].get("role") for c in parsed[:2]] == ["assistant"] * 2
    assert sorted(c["choices"][0]["index"] for c in parsed[:2]) == [0, 1]
    assert parsed[-1]["choices"] == []
    assert parsed[-1]["usage"]["completion_tokens"] == 12
    counts = [chunk["usage"]["completion_tokens"] for chunk in parsed]
    assert counts == sorted(counts)
    assert 0 < counts[len(counts) // 2] < 12


def test_logprobs_are_of_the_text(server: RunningServer) -> None:
    body = {"messages": QUESTION, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    choice = request(server.base_url, CHAT, body).json["choices"][0]
    items = choice["logprobs"]["content"]
    spelled = b"".join(bytes(item["bytes"]) for item in items).decode()
    assert spelled == choice["message"]["content"]
    for item in items:
        assert len(item["top_logprobs"]) == 3
        assert item["top_logprobs"][0]["logprob"] == item["logprob"] <= 0
    stream = request(server.base_url, CHAT, {**body, "stream": True})
    streamed = [json.loads(chunk)["choices"][0] for chunk in events(stream)[:-1]]
    again = [item for c in streamed if c["logprobs"] for item in c["logprobs"]["content"]]
    assert again == items


def test_each_prompt_gets_n_answers(server: RunningServer) -> None:
    prompts = ["The capital of France is", "One, two, three,"]
    body = {"prompt": prompts, "n": 2, "temperature": 0, "max_tokens": 4, "echo": True}
    whole = request(server.base_url, TEXT, body).json
    texts = [choice["text"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert texts[0] == texts[1]
    assert texts[0].startswith(prompts[0])
    assert texts[3].startswith(prompts[1])
    assert whole["usage"]["completion_tokens"] == 16
    streamed = [""] * 4
    for data in events(request(server.base_url, TEXT, {**body, "stream": True}))[:-1]:
        for choice in json.loads(data)["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == texts


def test_completion_logprobs(server: RunningServer) -> None:
    body = {"prompt": "One, two,", "temperature": 0, "max_tokens": 5, "logprobs": 2}
    choice = request(server.base_url, TEXT, body).json["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert [choice["text"][o:][:1] for o in logprobs["text_offset"]] == [
        token[:1] for token in logprobs["tokens"]
    ]
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])


def test_stop_seed_and_bias(server: RunningServer) -> None:
    body = {"messages": QUESTION, "temperature": 0}
    stopped = request(server.base_url, CHAT, {**body, "stop": [" Paris"]}).json["choices"][0]
    assert stopped["message"]["content"] == "The capital of France is"
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", " Paris")
    drawn = {"messages": QUESTION, "temperature": 1.5, "seed": 7, "max_tokens": 12, "n": 2}
    first, again = (request(server.base_url, CHAT, drawn).json["choices"] for _ in range(2))
    assert first == again
    assert first[0]["message"]["content"] != first[1]["message"]["content"]
    token = request(server.base_url, "/tokenize", {"prompt": " yes"}).json["tokens"][0]
    biased = {**body, "logit_bias": {str(token): 100}, "max_tokens": 3}
    answer = request(server.base_url, CHAT, biased).json["choices"][0]
    assert answer["message"]["content"] == " yes yes yes"


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON, "strict": True},
            }
        },
        {"structured_outputs": {"json": PERSON}},
        {"guided_json": json.dumps(PERSON)},
    ],
)
def test_a_schema_is_kept(server: RunningServer, fields: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Invent a person."}]
    body = {"messages": messages, "temperature": 1.5, "seed": 3, "n": 4, "max_tokens": 200}
    choices = request(server.base_url, CHAT, {**body, **fields}).json["choices"]
    whole = [choice for choice in choices if choice["finish_reason"] == "stop"]
    assert whole
    for choice in whole:
        person = json.loads(choice["message"]["content"])
        assert set(person) == {"name", "age"}
        assert isinstance(person["age"], int)


def test_other_constraints_are_kept(server: RunningServer) -> None:
    body = {"prompt": "The answer is", "temperature": 1.5, "seed": 5, "max_tokens": 40}

    def text(**constraint: Any) -> str:
        answer = request(server.base_url, TEXT, {**body, "structured_outputs": constraint})
        return str(answer.json["choices"][0]["text"])

    assert text(choice=["left", "right"]) in ("left", "right")
    assert re.fullmatch("[0-9]{3}-[a-f]{2}", text(regex="[0-9]{3}-[a-f]{2}"))
    assert text(grammar='start: "ab" "c"') == "abc"
    legacy = request(server.base_url, TEXT, {**body, "guided_choice": ["up"]}).json
    assert legacy["choices"][0]["text"] == "up"


def test_a_schema_that_cannot_be_kept_is_refused(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    for stream in (False, True):
        body = {"prompt": "x", "structured_outputs": {"json": schema}, "stream": stream}
        answer = request(server.base_url, TEXT, body)
        assert answer.status == 400
        assert answer.error["code"] == "invalid_grammar"
        assert "#/properties/a/not" in answer.error["message"]


def test_tokenize_and_back(server: RunningServer) -> None:
    text = "Grüße, 世界 🎉"
    tokens = request(server.base_url, "/tokenize", {"prompt": text}).json["tokens"]
    assert request(server.base_url, "/detokenize", {"tokens": tokens}).json["prompt"] == text
    rendered = request(server.base_url, "/tokenize", {"messages": QUESTION}).json
    body = {"messages": QUESTION, "max_tokens": 1}
    usage = request(server.base_url, CHAT, body).json["usage"]
    assert usage["prompt_tokens"] == rendered["count"]


def test_embeddings(server: RunningServer) -> None:
    texts = ["A cat sat on the mat.", "A cat sat on a mat.", "Interest rates rose by 2%."]
    answer = request(server.base_url, "/v1/embeddings", {"input": texts}).json
    vectors = np.array([item["embedding"] for item in answer["data"]])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > far
    encoded = request(
        server.base_url, "/v1/embeddings", {"input": texts, "encoding_format": "base64"}
    ).json["data"][1]["embedding"]
    raw = base64.b64decode(encoded)
    unpacked = struct.unpack(f"<{len(raw) // 4}f", raw)
    np.testing.assert_allclose(unpacked, vectors[1], atol=2e-2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_client_that_goes_frees_everything(
    server: RunningServer, path: str, stream: bool
) -> None:
    body: dict[str, Any] = {**LONG, "stream": stream, "n": 2}
    if path == CHAT:
        del body["prompt"]
        body["messages"] = QUESTION
    connection = open_request(server.base_url, path, body)
    wait_until(lambda: status(server)["requests"]["running"] == 2)
    connection.close()
    wait_until(lambda: status(server)["requests"]["running"] == 0, 2.0)
    assert status(server)["kv_cache"]["used_bytes"] == 0


def test_a_client_that_goes_during_prefill(server: RunningServer) -> None:
    prompt = [token % 4000 + 100 for token in range(8000)]
    connection = open_request(server.base_url, TEXT, {"prompt": prompt, "cache_salt": "prefill"})
    wait_until(lambda: status(server)["requests"]["running"] == 1)
    connection.close()
    wait_until(lambda: status(server)["requests"]["running"] == 0, 3.0)


def test_metrics_count(server: RunningServer) -> None:
    request(server.base_url, TEXT, {"prompt": "a", "max_tokens": 3, "ignore_eos": True})
    answer = request(server.base_url, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = dict(
        line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if line[0] != "#"
    )
    label = '{model_name="smollm2-135m"}'
    assert float(lines[f"vllm:num_requests_running{label}"]) == 0
    assert float(lines[f"vllm:generation_tokens_total{label}"]) >= 3
    assert float(lines[f"vllm:time_to_first_token_seconds_count{label}"]) >= 1
    assert float(lines[f"vllm:inter_token_latency_seconds_count{label}"]) >= 2
    ended = 'vllm:request_success_total{finished_reason="length",model_name="smollm2-135m"}'
    assert float(lines[ended]) >= 1


def test_keys_limits_and_origins(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(
        *("--api-key", "first", "--api-key", "second", "--max-body-bytes", "2000"),
        *("--cors-origin", "https://a.example", "--ignore-unknown-parameters"),
        *("--served-model-name", "mine", "--no-page", "--max-model-len", "256"),
    )
    url = server.base_url
    assert request(url, "/health").json == {"status": "ok"}
    assert request(url, "/ready").status == 200
    assert request(url, "/").status == 404
    for headers in ({}, {"authorization": "Bearer third"}, {"authorization": "Basic first"}):
        answer = request(url, "/v1/models", headers=headers)
        assert answer.status == 401
        assert answer.error["code"] == "invalid_api_key"
    for headers in ({"authorization": "Bearer second"}, {"x-api-key": "first"}):
        assert request(url, "/v1/models", headers=headers).json["data"][0]["id"] == "mine"
    key = {"authorization": "Bearer first"}

    large = {"messages": [{"role": "user", "content": "x" * 3000}]}
    answer = request(url, CHAT, large, headers=key)  # refused before the body is read
    assert answer.status == 413
    assert answer.error["code"] == "request_too_large"
    assert _chunked(url, b'{"prompt": "' + b"x" * 3000) == 413

    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    answer = request(url, CHAT, method="OPTIONS", headers=preflight)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://a.example"

    odd = {"prompt": "a", "max_tokens": 1, "frobnicate": 1}
    answer = request(url, TEXT, odd, headers=key)
    assert answer.status == 200
    assert answer.headers["x-ignored-parameters"] == "frobnicate"


def _chunked(url: str, body: bytes) -> int:
    """The status of a chunked request whose body never ends."""
    address = urlsplit(url)
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    head += "Authorization: Bearer first\r\n\r\n"
    with socket.create_connection((address.hostname or "", address.port or 0), 10) as opened:
        opened.sendall(head.encode() + f"{len(body):x}\r\n".encode() + body + b"\r\n")
        return int(opened.recv(4096).split()[1])


def test_a_full_queue_says_when_to_come_back(start_server: Callable[..., RunningServer]) -> None:
    server = start_server("--max-num-seqs", "1", "--max-waiting", "1", "--max-model-len", "4096")
    first = open_request(server.base_url, TEXT, {**LONG, "stream": True})
    wait_until(lambda: status(server)["requests"] == {"running": 1, "waiting": 0})
    second = open_request(server.base_url, TEXT, LONG)
    wait_until(lambda: status(server)["requests"]["waiting"] == 1)
    answer = request(server.base_url, TEXT, {"prompt": "a"})
    assert answer.status == 503
    assert answer.error["code"] == "queue_full"
    assert int(answer.headers["retry-after"]) >= 1
    first.close()
    second.close()
    wait_until(lambda: status(server)["requests"] == {"running": 0, "waiting": 0})


def test_a_stop_tells_the_streams_that_still_run(
    start_server: Callable[..., RunningServer],
) -> None:
    server = start_server(ends=True)
    connection = open_request(server.base_url, TEXT, {**LONG, "stream": True})
    wait_until(lambda: status(server)["requests"]["running"] == 1)
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    received = bytearray()
    while piece := connection.recv(65536):
        received += piece
    connection.close()
    assert server.process.wait(10) == 0
    assert time.monotonic() - started < 8
    assert b"data: " in received
    assert b"shutting down" in received
    assert b"[DONE]" not in received
