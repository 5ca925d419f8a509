"""The figures of one load: throughput, time to first token, gaps; and what is kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.traffic import Answer, LoadRun

# Events that came in one segment have no gap; ratios need a positive one.
CLOCK_MS = 0.001


@dataclass(frozen=True)
class Figures:
    """What one load showed, from its first request to the end of its last answer.

    Attributes:
        output_tok_s: completion tokens per second.
        total_tok_s: prompt tokens, cached ones included, and completion tokens per second.
        ttft_p50_ms, ttft_p95_ms: from sending a request to its first event with text.
        gap_p50_ms, gap_p95_ms: between two successive events with text of one request.
        tokens_per_event: completion tokens over events with text; above 1 where tokens complete
            no character or were merged.
        cached_share: prompt tokens from the cache over prompt tokens, where the server says so.
        client_cpu_share: CPU time of the load generator over that of all cores.
    """

    output_tok_s: float
    total_tok_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p95_ms: float
    requests: int
    wall_seconds: float
    tokens_per_event: float
    cached_share: float | None
    client_cpu_share: float


# What is compared between arms; for the rates more is better, for the times less.
MEASURES = (
    "output_tok_s",
    "total_tok_s",
    "ttft_p50_ms",
    "ttft_p95_ms",
    "gap_p50_ms",
    "gap_p95_ms",
)


def gaps_ms(answers: Sequence[Answer]) -> list[float]:
    """Return the time between successive events with text, in milliseconds."""
    return [
        (later - earlier) * 1e3
        for answer in answers
        for earlier, later in zip(answer.arrivals, answer.arrivals[1:], strict=False)
    ]


def figures(load: LoadRun, prompt_tokens: int, cores: int) -> Figures:
    """Return the figures of a load without failures, each prompt having `prompt_tokens`.

    Raises:
        ValueError: if there is no answer or one failed.
    """
    answers = load.answers
    failed = [answer.failure for answer in answers if answer.failure is not None]
    if failed or not answers:
        first = failed[0] if failed else "none was sent"
        raise ValueError(f"{len(failed)} of {len(answers)} requests failed, first: {first}")
    output = sum(answer.tokens for answer in answers)
    first_ms = [(answer.arrivals[0] - answer.sent) * 1e3 for answer in answers]
    gaps = gaps_ms(answers)
    cached = [answer.cached for answer in answers if answer.cached is not None]
    return Figures(
        output_tok_s=output / load.wall_seconds,
        total_tok_s=(output + prompt_tokens * len(answers)) / load.wall_seconds,
        ttft_p50_ms=float(np.percentile(first_ms, 50)),
        ttft_p95_ms=float(np.percentile(first_ms, 95)),
        gap_p50_ms=max(CLOCK_MS, float(np.percentile(gaps, 50))),
        gap_p95_ms=max(CLOCK_MS, float(np.percentile(gaps, 95))),
        requests=len(answers),
        wall_seconds=load.wall_seconds,
        tokens_per_event=output / sum(len(answer.arrivals) for answer in answers),
        cached_share=sum(cached) / (len(cached) * prompt_tokens) if cached else None,
        client_cpu_share=load.client_cpu_seconds / (load.wall_seconds * cores),
    )


def raw_record(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return what is kept of a load: each request's times, and all gaps as a histogram.

    Gaps are in milliseconds at two significant digits; figures are made from the exact ones.
    """
    histogram = Counter(float(f"{gap:.2g}") for gap in gaps_ms(answers))
    return {
        "requests": [
            {
                "stream": answer.stream,
                "turn": answer.turn,
                "sent_ms": round(answer.sent * 1e3, 1),
                "first_ms": round(answer.arrivals[0] * 1e3, 1) if answer.arrivals else None,
                "last_ms": round(answer.arrivals[-1] * 1e3, 1) if answer.arrivals else None,
                "events": len(answer.arrivals),
                "tokens": answer.tokens,
                "cached": answer.cached,
                "failure": answer.failure,
            }
            for answer in answers
        ],
        "gaps_ms": {f"{gap:g}": histogram[gap] for gap in sorted(histogram)},
    }
