"""Closed-loop load on a completions server, and the figures of one such load."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.http_client import Exchange, ResponseError, exchange, parse, request_bytes

HOST = "127.0.0.1"
COMPLETIONS = "/v1/completions"
WARM_UP_PASS = 1 << 20  # no measured pass has this number, so its prompts are nobody else's
PREFIX_KEY = 1 << 21

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
        client_cpu_seconds: CPU time of this process while the load ran, parsing left out.
    """

    answers: list[Answer]
    wall_seconds: float
    client_cpu_seconds: float


def read_answer(done: Exchange, traffic: Traffic, stream: int, turn: int, origin: float) -> Answer:
    """Check one answer against what was asked for; a deviation becomes its failure."""
    arrivals: list[float] = []
    tokens, cached, failure = 0, None, None
    try:
        arrivals, usage, reason = read_stream(done)
        tokens = usage["completion_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if usage["prompt_tokens"] != traffic.prompt_tokens:
            failure = f"prompt_tokens {usage['prompt_tokens']}, sent {traffic.prompt_tokens}"
        elif tokens != traffic.n_gen or reason != "length":
            failure = f"{tokens} tokens, ended by {reason!r}, asked for {traffic.n_gen}"
        elif not arrivals:
            failure = "no event with text"
    except (ResponseError, KeyError, TypeError) as error:
        failure = f"{type(error).__name__}: {error}"
    shifted = [arrival - origin for arrival in arrivals]
    ends = done.sent - origin, done.ended - origin
    return Answer(stream, turn, *ends, shifted, tokens, cached, failure)


def read_stream(done: Exchange) -> tuple[list[float], dict[str, Any], str | None]:
    """Return arrival times of events with text, the usage, and the finish reason.

    Raises:
        ResponseError: if it is not a stream of completion events that ends as it should.
    """
    response = parse(done)
    if response.status != 200:
        raise ResponseError(f"status {response.status}: {response.body[:300]!r}")
    if not response.events or response.events[-1][1] != b"[DONE]":
        raise ResponseError("the stream does not end with [DONE]")
    arrivals: list[float] = []
    usage: dict[str, Any] | None = None
    reason: str | None = None
    for arrival, data in response.events[:-1]:
        try:
            event = json.loads(data)
        except ValueError as error:
            raise ResponseError(f"an event is no JSON: {data[:200]!r}") from error
        if "error" in event:
            raise ResponseError(f"an event holds an error: {data[:300]!r}")
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            reason = choice.get("finish_reason") or reason
            if choice.get("text"):
                arrivals.append(arrival)
    if usage is None:
        raise ResponseError("the stream has no usage")
    return arrivals, usage, reason


def encode(port: int, body: dict[str, Any]) -> bytes:
    """Return a completions request as bytes."""
    return request_bytes("POST", HOST, port, COMPLETIONS, json.dumps(body).encode())


async def run_load(
    port: int, body: Body, traffic: Traffic, streams: int, turns: int, pass_index: int,
    timeout_seconds: float,
) -> LoadRun:
    """Let each of `streams` clients send its next request as soon as its last one is answered."""
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
    """Bring code, memory and a shared prefix in, on every slot; return what failed.

    Shared prefixes are sent by all streams at once, so that a server with one cache per slot
    has it in each; otherwise two short requests suffice.
    """
    if traffic.shared_tokens:
        prompts = [traffic.prompt(WARM_UP_PASS, stream, 0) for stream in range(streams)]
        n_gen = 2
    else:
        prompts = [traffic.prompt(WARM_UP_PASS, stream, 0)[:64] for stream in range(streams)]
        n_gen = 8
    done = await asyncio.gather(
        *(
            exchange(
                HOST, port, encode(port, body(prompt, n_gen)), timeout_seconds=timeout_seconds
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


@dataclass(frozen=True)
class Figures:
    """What one load showed, over the time in which every stream had a request in flight.

    Attributes:
        output_tok_s: tokens that arrived in that time, per second.
        ttft_p50_ms, ttft_p95_ms: from sending a request to its first event with text.
        gap_p50_ms, gap_p95_ms: between events of one stream, per token: an event's gap is
            divided by the request's tokens per event, which is 1 unless events were merged.
        window_seconds: length of that time.
        requests: requests sent in it.
        tokens_per_event: completion tokens over events with text, all requests.
        cached_share: prompt tokens from the cache over prompt tokens, where the server says so.
    """

    output_tok_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p95_ms: float
    window_seconds: float
    requests: int
    tokens_per_event: float
    cached_share: float | None


MEASURES = ("output_tok_s", "ttft_p50_ms", "ttft_p95_ms", "gap_p50_ms", "gap_p95_ms")


def window(answers: Sequence[Answer]) -> tuple[float, float]:
    """Return the time in which every stream had a request in flight.

    It begins when the last stream sent its first request and ends when the first stream got
    the end of its last answer.
    """
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for answer in answers:
        first[answer.stream] = min(first.get(answer.stream, answer.sent), answer.sent)
        last[answer.stream] = max(last.get(answer.stream, 0.0), answer.arrivals[-1])
    return max(first.values()), min(last.values())


def gaps_ms(answers: Sequence[Answer], begin: float, end: float) -> list[float]:
    """Return every per-token gap that ended between two moments, in milliseconds."""
    return [
        (later - earlier) * 1e3 * len(answer.arrivals) / answer.tokens
        for answer in answers
        for earlier, later in zip(answer.arrivals, answer.arrivals[1:], strict=False)
        if begin <= later <= end
    ]


def figures(answers: Sequence[Answer], prompt_tokens: int) -> Figures:
    """Return the figures of a load without failures.

    Raises:
        ValueError: if an answer failed or the window holds no request or no gap.
    """
    failed = [answer.failure for answer in answers if answer.failure is not None]
    if failed:
        raise ValueError(f"{len(failed)} of {len(answers)} requests failed, first: {failed[0]}")
    begin, end = window(answers)
    arrived = sum(
        sum(begin <= arrival <= end for arrival in answer.arrivals)
        * (answer.tokens / len(answer.arrivals))
        for answer in answers
    )
    first_ms = [
        (answer.arrivals[0] - answer.sent) * 1e3 for answer in answers if answer.sent <= end
    ]
    gaps = gaps_ms(answers, begin, end)
    if end <= begin or not gaps:
        raise ValueError(f"the streams were never in flight together ({begin:.2f} to {end:.2f} s)")
    cached = [answer.cached for answer in answers if answer.cached is not None]
    return Figures(
        output_tok_s=arrived / (end - begin),
        ttft_p50_ms=float(np.percentile(first_ms, 50)),
        ttft_p95_ms=float(np.percentile(first_ms, 95)),
        gap_p50_ms=float(np.percentile(gaps, 50)),
        gap_p95_ms=float(np.percentile(gaps, 95)),
        window_seconds=end - begin,
        requests=len(first_ms),
        tokens_per_event=sum(answer.tokens for answer in answers)
        / sum(len(answer.arrivals) for answer in answers),
        cached_share=sum(cached) / (len(cached) * prompt_tokens) if cached else None,
    )


def two_digits(value: float) -> float:
    """Return a value rounded to two significant digits."""
    return float(f"{value:.2g}")


def raw_record(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return what is kept of a load: each request's times, and all gaps as a histogram.

    Gaps are in milliseconds at two significant digits; figures are made from the exact ones.
    """
    every = gaps_ms(answers, 0.0, float("inf"))
    histogram = Counter(two_digits(gap) for gap in every)
    return {
        "requests": [
            {
                "stream": answer.stream,
                "turn": answer.turn,
                "sent_ms": round(answer.sent * 1e3, 1),
                "first_ms": round(answer.arrivals[0] * 1e3, 1),
                "last_ms": round(answer.arrivals[-1] * 1e3, 1),
                "events": len(answer.arrivals),
                "tokens": answer.tokens,
                "cached": answer.cached,
            }
            for answer in answers
        ],
        "gaps_ms": {f"{gap:g}": histogram[gap] for gap in sorted(histogram)},
    }
