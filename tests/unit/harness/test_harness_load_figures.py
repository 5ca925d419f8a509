"""Figures of a load from known times, and the targets that ratios are held against."""

from __future__ import annotations

from typing import Any

import pytest
from harness import server_targets
from harness.arm import ReadError
from harness.load_figures import figures, raw_record
from harness.prometheus_text import metric, metric_samples
from harness.traffic import Answer, LoadRun, Traffic

TRAFFIC = Traffic("shared", 6, 4, 3, 10, 1000, 0)


def answer(stream: int, sent: float, *arrivals: float, failure: str | None = None) -> Answer:
    return Answer(stream, 0, sent, arrivals[-1], list(arrivals), 3, 6, failure)


def test_figures_follow_from_the_times() -> None:
    load = LoadRun([answer(0, 0.0, 0.5, 0.6, 0.8), answer(1, 0.1, 1.1, 2.0)], 2.0, 0.04)
    got = figures(load, TRAFFIC.prompt_tokens, 2)
    assert got.output_tok_s == pytest.approx(6 / 2.0)
    assert got.total_tok_s == pytest.approx((6 + 20) / 2.0)
    assert got.ttft_p50_ms == pytest.approx(750.0)  # of 500 and 1000
    assert got.ttft_p95_ms == pytest.approx(975.0)
    assert got.gap_p50_ms == pytest.approx(200.0)  # of 100, 200 and 900
    assert got.gap_p95_ms == pytest.approx(830.0)
    assert got.tokens_per_event == pytest.approx(6 / 5)
    assert got.cached_share == pytest.approx(0.6)
    assert got.client_cpu_share == pytest.approx(0.01)


def test_a_failed_request_leaves_no_figures() -> None:
    load = LoadRun([answer(0, 0.0, 1.0, 2.0, failure="127 tokens")], 2.0, 0.0)
    with pytest.raises(ValueError, match="1 of 1 requests failed, first: 127 tokens"):
        figures(load, 10, 2)


def test_the_raw_record_keeps_times_and_gaps() -> None:
    record = raw_record([answer(0, 0.0, 0.5, 0.6, 0.8)])
    assert record["gaps_ms"] == {"100": 1, "200": 1}
    assert record["requests"][0]["first_ms"] == 500.0


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    one, other = TRAFFIC.prompt(0, 0, 0), TRAFFIC.prompt(0, 1, 0)
    assert one[:6] == other[:6]
    assert one[6:] != other[6:]
    assert one == TRAFFIC.prompt(0, 0, 0)
    assert len(one) == TRAFFIC.prompt_tokens == 10


def ratios(output: float, ttft: float, gap: float) -> dict[str, Any]:
    values = {"output_tok_s": output, "ttft_p95_ms": ttft, "gap_p95_ms": gap}
    by_measure = {name: {"median": value} for name, value in values.items()}
    return {"distinct x8": by_measure, "distinct x4": {}}


def test_targets_hold_against_the_better_arm() -> None:
    outcomes = server_targets.judge(
        {"us / fa0": ratios(3.0, 0.6, 0.9), "us / fa1": ratios(2.5, 0.4, 1.0)}
    )
    assert [(one["measure"], one["pair"], one["met"]) for one in outcomes] == [
        ("output_tok_s", "us / fa1", True),
        ("ttft_p95_ms", "us / fa0", False),
        ("gap_p95_ms", "us / fa1", True),
    ]
    text = "\n".join(server_targets.lines(outcomes))
    assert "| distinct x8, ttft_p95_ms | 0.600 | <= 0.5 | fa0 | MISSED |" in text
    assert text.count("MISSED") == 1


def test_without_arms_to_compare_there_are_no_targets() -> None:
    assert server_targets.lines(server_targets.judge({})) == []


METRICS = """# HELP x_total things
x_total{model="a",kind="b \\"c\\""} 2.0
x_total{model="d"} 3
y 1e-3
"""


def test_metrics_are_summed_over_their_labels() -> None:
    assert metric(METRICS, "x_total") == 5.0
    assert metric(METRICS, "y") == 0.001
    assert metric_samples(METRICS)[0][1]["model"] == "a"


def test_a_missing_metric_is_an_error() -> None:
    with pytest.raises(ReadError, match="no x_count"):
        metric(METRICS, "x_count")
