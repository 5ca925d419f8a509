"""The targets of a server comparison: what has to hold against every llama-server arm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TARGET_STREAMS = 8


@dataclass(frozen=True)
class Target:
    """A bound on the median ratio of ours to another arm; `at_least` or else at most."""

    measure: str
    bound: float
    at_least: bool


TARGETS = (
    Target("output_tok_s", 2.0, True),
    Target("ttft_p95_ms", 0.5, False),
    Target("gap_p95_ms", 1.0, False),
)


def judge(ratios: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each target's outcome at 8 streams, load by load, against the arm nearest to it.

    Args:
        ratios: by pair of arms, load and measure, as `server_comparison.ratios` returns them.
    """
    outcomes = []
    loads = dict.fromkeys(load for by_load in ratios.values() for load in by_load)
    for load in loads:
        if not load.endswith(f" x{TARGET_STREAMS}"):
            continue
        for target in TARGETS:
            by_pair = {pair: by[load][target.measure]["median"] for pair, by in ratios.items()}
            pair = (min if target.at_least else max)(by_pair, key=lambda name: by_pair[name])
            ratio = by_pair[pair]
            met = ratio >= target.bound if target.at_least else ratio <= target.bound
            outcomes.append(
                {
                    "load": load,
                    "measure": target.measure,
                    "pair": pair,
                    "ratio": ratio,
                    "target": f"{'>=' if target.at_least else '<='} {target.bound:g}",
                    "met": met,
                }
            )
    return outcomes


def lines(outcomes: list[dict[str, Any]]) -> list[str]:
    """Return the outcomes as lines of markdown, none where there is no outcome."""
    if not outcomes:
        return []
    head = ["", "| target at 8 streams | ratio | wanted | against | |", "|---|---|---|---|---|"]
    return head + [
        f"| {one['load']}, {one['measure']} | {one['ratio']:.3f} | {one['target']} "
        f"| {one['pair'].partition(' / ')[2]} | {'met' if one['met'] else 'MISSED'} |"
        for one in outcomes
    ]
