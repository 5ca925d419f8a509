"""Reading answers of both APIs, and what a soak makes of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from harness.http_client import Exchange, HangUp, ResponseError
from harness.replies import Reply, read_reply
from harness.soak_traffic import (
    CHAT,
    COMPLETIONS,
    Lengths,
    Question,
    Tally,
    Visit,
    check_reply,
    judge,
    question,
    visit,
)

USAGE = {"prompt_tokens": 3, "completion_tokens": 4}
LENGTHS = Lengths((4, 300), (2, 64), (10, 100))


def whole(body: dict[str, Any], status: str = "200 OK") -> Exchange:
    data = json.dumps(body).encode()
    raw = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(data)) + data
    return Exchange(1.0, 4.0, [(2.0, raw)], False, None)


def stream(*events: Any, end: str = "data: [DONE]\n\n") -> Exchange:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    segments = [(1.0, head)]
    for at, event in enumerate(events):
        segments.append((2.0 + at, f"data: {json.dumps(event)}\n\n".encode()))
    return Exchange(0.0, 99.0, [*segments, (98.0, end.encode())], False, None)


def test_the_choices_of_a_stream_are_put_together() -> None:
    done = stream(
        {"choices": [{"index": 1, "text": "c", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "a", "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]},
        {"choices": [{"index": 1, "text": "", "finish_reason": "stop"}]},
        {"choices": [], "usage": USAGE},
    )
    assert read_reply(done, stream=True) == Reply(
        ["ab", "c"], ["length", "stop"], USAGE, [2.0, 3.0, 4.0]
    )


def test_a_chat_is_its_reasoning_and_its_content() -> None:
    done = stream(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"reasoning_content": "hm "}}]},
        {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": USAGE},
    )
    streamed = read_reply(done, stream=True)
    message = {"reasoning_content": "hm ", "content": "yes"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    at_once = read_reply(whole({"choices": [choice], "usage": USAGE}), stream=False)
    assert streamed.texts == at_once.texts == ["hm yes"]
    assert streamed.reasons == at_once.reasons == ["stop"]
    assert streamed.arrivals == [3.0, 4.0]


@pytest.mark.parametrize(
    ("done", "message"),
    [
        (stream({"choices": [], "usage": USAGE}, end=""), "does not end with"),
        (stream({"choices": []}), "no usage"),
        (stream({"error": {"message": "out of memory"}}), "out of memory"),
        (stream({"choices": [{"text": "a"}]}), "no completion"),
        (stream([1, 2]), "no completion"),
        (whole({"error": "busy"}, "503 Busy"), "status 503"),
    ],
)
def test_a_stream_that_is_none_is_refused(done: Exchange, message: str) -> None:
    with pytest.raises(ResponseError, match=message):
        read_reply(done, stream=True)


def test_an_answer_without_choices_is_refused() -> None:
    with pytest.raises(ResponseError, match="not a completion"):
        read_reply(whole({"object": "list"}), stream=False)


def asked(n: int = 1) -> Question:
    return Question("completion", COMPLETIONS, {"max_tokens": 4, "n": n}, 4 * n)


def reply(text: str, reason: str = "length", **usage: int) -> Reply:
    return Reply([text], [reason], {**USAGE, **usage}, [])


def judged(
    text: str, alone: Reply, reason: str = "length", hang_up: HangUp | None = None, **usage: int
) -> Tally:
    choice = {"index": 0, "text": text, "finish_reason": reason}
    done = whole({"choices": [choice], "usage": {**USAGE, **usage}})
    tally = Tally()
    judge(done, Visit(0, asked(), {"stream": False}, hang_up), [alone], tally)
    return tally


def test_an_answer_as_given_alone_is_completed() -> None:
    tally = judged("same", reply("same"))
    assert tally.outcomes == {"completed": 1}
    assert tally.compared == {"completion": 1}
    assert (tally.generated_tokens, tally.seconds) == (4, [3.0])


def test_a_client_that_would_leave_but_had_its_answer_is_judged() -> None:
    assert judged("x", reply("y"), hang_up=HangUp(1.0)).outcomes == {"differing": 1}


@pytest.mark.parametrize(
    ("alone", "message"),
    [
        (reply("sane"), "character 2: 'me', alone 'ne'"),
        (reply("same and more"), "character 4: '', alone ' and more'"),
        (reply("same", "stop"), "finish reasons"),
        (reply("same", prompt_tokens=5), "prompt_tokens is 3, alone 5"),
    ],
)
def test_any_difference_is_told(alone: Reply, message: str) -> None:
    tally = judged("same", alone)
    assert tally.outcomes == {"differing": 1}
    assert message in tally.failures[0]


def test_an_answer_of_another_length_is_a_failure() -> None:
    tally = judged("same", reply("same"), completion_tokens=3)
    assert tally.outcomes == {"failed": 1}
    assert "3 tokens, ended by ['length'], asked for 4" in tally.failures[0]


def test_a_missing_choice_is_told() -> None:
    assert check_reply(reply("a"), asked(n=2)) == "1 choices, asked for 2"


def test_a_client_that_left_is_neither_completed_nor_failed() -> None:
    tally = Tally()
    left = Exchange(0.0, 1.0, [], True, None)
    judge(left, Visit(0, asked(), {"stream": True}, HangUp(1.0)), [reply("a")], tally)
    assert tally.outcomes == {"disconnected": 1}


def test_a_connection_that_broke_is_a_failure() -> None:
    tally = Tally()
    broken = Exchange(0.0, 1.0, [], False, "connection lost: reset")
    judge(broken, Visit(0, asked(), {"stream": True}, None), [reply("a")], tally)
    assert tally.outcomes == {"failed": 1}


def test_questions_are_mixed_and_within_their_lengths() -> None:
    rng = np.random.default_rng(0)
    made = [question(rng, LENGTHS, "m") for _ in range(400)]
    kinds = {one.kind for one in made}
    assert kinds == {"chat", "chat n=2", "completion", "completion n=2"}
    prompts = [tuple(one.body["prompt"]) for one in made if one.path == COMPLETIONS]
    assert max(map(len, prompts)) < 300
    assert min(map(len, prompts)) >= 4
    heads = [prompt[:40] for prompt in prompts if len(prompt) > 40]
    assert max(heads.count(head) for head in heads) > 20  # a common prefix
    assert {one.path for one in made} == {COMPLETIONS, CHAT}
    assert all(one.body["max_tokens"] < 64 for one in made)


def test_visits_depend_on_their_seed_and_leave_as_often_as_told() -> None:
    questions = [question(np.random.default_rng(1), LENGTHS, "m")]

    def visits(seed: int) -> list[Visit]:
        rng = np.random.default_rng(seed)
        return [visit(rng, questions, LENGTHS, "m", 0.2) for _ in range(500)]

    made = visits(2)
    assert made == visits(2)
    assert made != visits(3)
    assert 70 < sum(one.hang_up is not None for one in made) < 130
    known = [one for one in made if one.known is not None]
    assert 340 < len(known) < 410
    assert all(one.body["temperature"] == 0 for one in known)
    assert all("seed" in one.body for one in made if one.known is None)
