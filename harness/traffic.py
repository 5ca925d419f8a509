"""Closed-loop load on a completions server: each stream sends its next request when answered."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.http_client import Exchange, ResponseError, exchange, request_bytes
from harness.replies import read_stream
from harness.server_process import HOST

COMPLETIONS = "/v1/completions"
WARM_UP_PASS = 1 << 20  # no measured pass has this number, so its prompts are nobody else's
PREFIX_KEY = 1 << 21
WARM_UP_TOKENS = 8

Body = Callable[[list[int], int], dict[str, Any]]


@dataclass(frozen=True)
class Traffic:
    """What every stream sends, over and over.

    Attributes:
        shared_tokens: prompt tokens that all requests have in common.
        distinct_tokens: prompt tokens that no two requests share.
        n_gen: tokens generated for each request.
        low, high: range of the random token ids, `high` excluded.
        seed: of all prompts.
    """

    name: str
    shared_tokens: int
    distinct_tokens: int
    n_gen: int
    low: int
    high: int
    seed: int

    @property
    def prompt_tokens(self) -> int:
        """Length of every prompt."""
        return self.shared_tokens + self.distinct_tokens

    def prompt(self, pass_index: int, stream: int, turn: int) -> list[int]:
        """Return a prompt that depends on nothing but its arguments and the seed."""
        shared = np.random.default_rng([self.seed, PREFIX_KEY]).integers(
            self.low, self.high, self.shared_tokens
        )
        own = np.random.default_rng([self.seed, pass_index, stream, turn]).integers(
            self.low, self.high, self.distinct_tokens
        )
        return [*shared.tolist(), *own.tolist()]


@dataclass(frozen=True)
class Answer:
    """One request's outcome. Times are seconds since the load began.

    Attributes:
        arrivals: when each event with text came.
        tokens: completion tokens as the server counts them.
        cached: prompt tokens the server took from its cache, where it says so.
        failure: why this request counts for nothing, or None.
    """

    stream: int
    turn: int
    sent: float
    ended: float
    arrivals: list[float]
    tokens: int
    cached: int | None
    failure: str | None


@dataclass(frozen=True)
class LoadRun:
    """All requests of one load, and what the client itself cost.

    Attributes:
        wall_seconds: from the first request to the end of the last answer.
        client_cpu_seconds: CPU time of this process meanwhile; parsing comes later.
    """

    answers: list[Answer]
    wall_seconds: float
    client_cpu_seconds: float


def read_answer(done: Exchange, traffic: Traffic, stream: int, turn: int, origin: float) -> Answer:
    """Check one answer against what was asked for; a deviation becomes its failure."""
    arrivals: list[float] = []
    tokens, cached, failure = 0, None, None
    try:
        reply = read_stream(done)
        arrivals, usage, (reason,) = reply.arrivals, reply.usage, reply.reasons
        tokens = usage["completion_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if usage["prompt_tokens"] != traffic.prompt_tokens:
            failure = f"prompt_tokens {usage['prompt_tokens']}, sent {traffic.prompt_tokens}"
        elif tokens != traffic.n_gen or reason != "length":
            failure = f"{tokens} tokens, ended by {reason!r}, asked for {traffic.n_gen}"
        elif len(arrivals) < 2:
            failure = f"{len(arrivals)} events with text, at least 2 are needed"
    except (ResponseError, KeyError, TypeError, ValueError) as error:
        failure = f"{type(error).__name__}: {error}"
    shifted = [arrival - origin for arrival in arrivals]
    return Answer(
        stream, turn, done.sent - origin, done.ended - origin, shifted, tokens, cached, failure
    )


def encode(port: int, body: dict[str, Any], path: str = COMPLETIONS) -> bytes:
    """Return a request with a JSON body as bytes."""
    return request_bytes("POST", HOST, port, path, json.dumps(body).encode())


async def run_load(
    port: int,
    body: Body,
    traffic: Traffic,
    streams: int,
    turns: int,
    pass_index: int,
    timeout_seconds: float,
) -> LoadRun:
    """Let each of `streams` clients send `turns` requests, one after the other.

    Requests are made before the clock starts and answers are parsed after it has stopped.
    """
    requests = [
        [
            encode(port, body(traffic.prompt(pass_index, stream, turn), traffic.n_gen))
            for turn in range(turns)
        ]
        for stream in range(streams)
    ]

    async def client(stream: int) -> list[Exchange]:
        return [
            await exchange(HOST, port, request, timeout_seconds=timeout_seconds)
            for request in requests[stream]
        ]

    cpu, origin = time.process_time(), time.perf_counter()
    done = await asyncio.gather(*(client(stream) for stream in range(streams)))
    wall, cpu = time.perf_counter() - origin, time.process_time() - cpu
    answers = [
        read_answer(one, traffic, stream, turn, origin)
        for stream, exchanges in enumerate(done)
        for turn, one in enumerate(exchanges)
    ]
    return LoadRun(answers, wall, cpu)


async def warm_up(
    port: int, body: Body, traffic: Traffic, streams: int, timeout_seconds: float
) -> list[str]:
    """Bring code, memory and a shared prefix in; return what failed.

    All streams send at once a prompt that no measured request repeats beyond the shared prefix,
    so a server with one cache for each slot has the prefix in every slot.
    """
    prompts = [traffic.prompt(WARM_UP_PASS, stream, 0) for stream in range(streams)]
    done = await asyncio.gather(
        *(
            exchange(
                HOST,
                port,
                encode(port, body(prompt, WARM_UP_TOKENS)),
                timeout_seconds=timeout_seconds,
            )
            for prompt in prompts
        )
    )
    failures = []
    for one in done:
        try:
            read_stream(one)
        except ResponseError as error:
            failures.append(f"warm-up: {error}")
    return failures
