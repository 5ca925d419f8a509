"""Metrics by vLLM's names."""

from __future__ import annotations

from edge_infer.engine.sequence import Chunk, Timing
from edge_infer.server.async_engine import EngineStats
from edge_infer.server.metrics import Metrics

STATS = EngineStats(
    num_running=2,
    num_waiting=1,
    kv_usage=0.25,
    num_free_blocks=6,
    num_blocks=8,
    num_preemptions=3,
    prefix_cache_queries=100,
    prefix_cache_hits=60,
    prompt_tokens=500,
    generation_tokens=50,
    drafts=4,
    draft_tokens=12,
    accepted_tokens=9,
)


def exposed(metrics: Metrics) -> dict[str, float]:
    lines = metrics.exposition().decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_the_engines_figures() -> None:
    found = exposed(Metrics("m", lambda: STATS))
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:num_preemptions_total": 3,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 60,
        "vllm:prompt_tokens_total": 500,
        "vllm:generation_tokens_total": 50,
        "vllm:spec_decode_num_drafts_total": 4,
        "vllm:spec_decode_num_draft_tokens_total": 12,
        "vllm:spec_decode_num_accepted_tokens_total": 9,
    }
    for name, value in expected.items():
        assert found[f'{name}{{model_name="m"}}'] == value


def test_a_request_is_measured() -> None:
    metrics = Metrics("m", lambda: STATS)
    meter = metrics.meter()
    timing = Timing(arrived=10.0, first_token=10.2, last_token=11.0)
    meter.chunk(0, Chunk("a", [1]), timing)
    meter.chunk(0, Chunk("b", [2], finish_reason="stop"), timing)
    found = exposed(metrics)
    assert found['vllm:request_success_total{finished_reason="stop",model_name="m"}'] == 1
    assert found['vllm:inter_token_latency_seconds_count{model_name="m"}'] == 1
    assert 0.19 < found['vllm:time_to_first_token_seconds_sum{model_name="m"}'] < 0.21
    assert 0.99 < found['vllm:e2e_request_latency_seconds_sum{model_name="m"}'] < 1.01
