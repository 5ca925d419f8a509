"""Prometheus metrics, under vLLM's names where the meaning is the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from edge_infer.engine.sequence import Chunk, Timing
from edge_infer.server.async_engine import EngineStats

_LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAP_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2)

_GAUGES = {
    "num_running": ("vllm:num_requests_running", "Sequences in the running batch"),
    "num_waiting": ("vllm:num_requests_waiting", "Sequences that wait for a place"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1"),
}
_COUNTERS = {
    "num_preemptions": ("vllm:num_preemptions", "Sequences that gave up their KV blocks"),
    "prefix_cache_queries": ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache"),
    "prefix_cache_hits": ("vllm:prefix_cache_hits", "Tokens found in the prefix cache"),
    "prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens computed"),
    "generation_tokens": ("vllm:generation_tokens", "Tokens generated"),
    "drafts": ("vllm:spec_decode_num_drafts", "Drafts verified"),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified"),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that came true"),
}


class _EngineFigures(Collector):
    """The engine's own figures, read when they are asked for."""

    def __init__(self, model_id: str, stats: Callable[[], EngineStats]) -> None:
        self._model_id = model_id
        self._stats = stats

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        stats = self._stats()
        kinds = ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS))
        for family, figures in kinds:
            for field, (name, text) in figures.items():
                metric = family(name, text, labels=["model_name"])
                metric.add_metric([self._model_id], getattr(stats, field))
                yield metric


class Metrics:
    """Latencies and outcomes of requests, and the engine's figures, in a registry of their own."""

    def __init__(self, model_id: str, stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineFigures(model_id, stats))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(name, text, ["model_name"], registry=self._registry, buckets=buckets)
            return made.labels(model_id)

        self._first = histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token", _LATENCY_BUCKETS
        )
        self._gap = histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a sequence", _GAP_BUCKETS
        )
        self._whole = histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token", _LATENCY_BUCKETS
        )
        ends = Counter(
            "vllm:request_success",
            "Sequences that ended, by why",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._ends = {
            reason: ends.labels(model_id, reason) for reason in ("stop", "length", "abort", "error")
        }

    def meter(self) -> Meter:
        """What measures one request."""
        return Meter(self)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def observe_gap(self, seconds: float) -> None:
        """Count the time between two tokens."""
        self._gap.observe(seconds)

    def observe_end(self, timing: Timing, reason: str) -> None:
        """Count a sequence that ended."""
        if timing.first_token is not None and timing.last_token is not None:
            self._first.observe(timing.first_token - timing.arrived)
            self._whole.observe(timing.last_token - timing.arrived)
        self._ends[reason].inc()


class Meter:
    """Measures the sequences of one request as their chunks pass."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[int, float] = {}

    def chunk(self, index: int, chunk: Chunk, timing: Timing) -> None:
        """A chunk of sequence `index` passed."""
        now = time.perf_counter()
        before = self._last.get(index)
        if before is not None:
            self._metrics.observe_gap(now - before)
        self._last[index] = now
        if chunk.finish_reason in ("stop", "length"):
            self._metrics.observe_end(timing, chunk.finish_reason)
