"""What a soak saw of the server, the checks it has to pass, and its summary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.arm import ReadError
from harness.comparison import MIB
from harness.mappings import kv_pss_bytes, mappings_of
from harness.prometheus_text import metric
from harness.server_process import ServerProcess, get
from harness.soak_traffic import Tally

SETTLE_SECONDS = 60.0  # memory is compared with that after this long
MAX_GROWTH = 0.02
GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_usage": "vllm:kv_cache_usage_perc",
}
COUNTERS = {
    "preemptions": "vllm:num_preemptions_total",
    "prompt_tokens_computed": "vllm:prompt_tokens_total",
    "prefix_cache_hits": "vllm:prefix_cache_hits_total",
}


@dataclass(frozen=True)
class Sample:
    """The server at one moment of the load; memory in bytes of PSS.

    Attributes:
        kv_bytes: the KV cache's part of `anonymous_bytes`.
        running, waiting: sequences; an n=2 request has two.
        kv_usage: share of KV blocks that sequences hold, 0 to 1; exactly 0 when all are free.
    """

    seconds: float
    anonymous_bytes: int
    file_bytes: int
    kv_bytes: int
    running: float
    waiting: float
    kv_usage: float


def read_metrics(port: int, names: dict[str, str]) -> dict[str, float]:
    """Return figures of /metrics under our names.

    Raises:
        ReadError: if /metrics lacks one or cannot be read.
    """
    status, text = get(port, "/metrics", 60.0)
    if status != 200:
        raise ReadError(f"/metrics answers {status}: {text[:200]}")
    return {field: metric(text, name) for field, name in names.items()}


def take_sample(server: ServerProcess, began: float) -> Sample:
    """Read memory and queues now; OSError when the server is gone."""
    pss = server.pss()
    return Sample(
        seconds=round(time.perf_counter() - began, 1),
        anonymous_bytes=pss.anonymous_bytes,
        file_bytes=pss.file_bytes,
        kv_bytes=kv_pss_bytes(mappings_of(server.pid)),
        **read_metrics(server.port, GAUGES),
    )


def settled(samples: Sequence[Sample], minutes: float) -> Sample:
    """Return the sample that growth is measured from: after a minute, or half of a short soak.

    Raises:
        ValueError: if the soak was too short to have one.
    """
    after = min(SETTLE_SECONDS, minutes * 30)
    late = [sample for sample in samples if sample.seconds >= after]
    if not late:
        raise ValueError(f"--minutes is {minutes:g}, too short for two memory readings")
    return late[0]


def memory_growth(samples: Sequence[Sample], end: Sample, minutes: float) -> dict[str, float]:
    """Return how much anonymous memory grew after warming up, whole and without the KV cache."""
    start = settled(samples, minutes)
    return {
        "from_seconds": start.seconds,
        "anonymous": end.anonymous_bytes / start.anonymous_bytes - 1,
        "without_kv": (end.anonymous_bytes - end.kv_bytes)
        / (start.anonymous_bytes - start.kv_bytes)
        - 1,
    }


def queue_figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Return means and peaks of the queues while the load ran."""
    return {
        f"{name}_{kind}": round(float(reduce([getattr(s, name) for s in samples])), 3)
        for name in GAUGES
        for kind, reduce in (("mean", np.mean), ("max", np.max))
    }


def latencies(tally: Tally) -> dict[str, float]:
    """Return percentiles in seconds of the requests that were answered."""
    return {
        f"{name}_p{percent}_s": round(float(np.percentile(values, percent)), 3)
        for name, values in (("ttft", tally.first_seconds), ("request", tally.seconds))
        for percent in (50, 95)
        if values
    }


def failed_checks(
    tally: Tally, end: Sample, growth: dict[str, float], exit_status: int
) -> list[str]:
    """Return a sentence for each check that failed."""
    failed = [
        f"{tally.outcomes[kind]} requests {kind}, first: {tally.failures[0]}"
        for kind in ("failed", "differing")
        if tally.outcomes[kind]
    ]
    if not tally.compared.total():
        failed.append("no answer was compared")
    failed += [
        f"{name} is {getattr(end, name):g} after the load, must be 0"
        for name in GAUGES
        if getattr(end, name)
    ]
    if growth["anonymous"] > MAX_GROWTH:
        failed.append(
            f"anonymous memory grew by {growth['anonymous']:.1%}, allowed are {MAX_GROWTH:.0%} "
            f"({growth['without_kv']:.1%} without the KV cache)"
        )
    if exit_status != 0:
        failed.append(f"the server ended with status {exit_status} on SIGTERM")
    return failed


def summary(report: dict[str, Any]) -> str:
    """Return the report as markdown."""
    outcomes, end, growth = report["outcomes"], report["samples"][-1], report["memory_growth"]
    title = f"{report['name']}: {report['machine_slug']}"
    options = report["options"]
    compared = ", ".join(f"{count} {kind}" for kind, count in report["compared"].items())
    start = next(s for s in report["samples"] if s["seconds"] == growth["from_seconds"])
    rows = {
        "load": f"{options['streams']} clients, {report['wall_seconds']:.0f} s, "
        f"{options['disconnect']:.0%} leave early",
        "answered": f"{outcomes.get('completed', 0)} requests, {report['output_tok_s']} tok/s out",
        "left early": str(outcomes.get("disconnected", 0)),
        "errors": str(outcomes.get("failed", 0)),
        "compared with alone": f"{sum(report['compared'].values())} ({compared})",
        "differing": str(outcomes.get("differing", 0)),
        "after the load": f"{end['running']:g} running, {end['waiting']:g} waiting, "
        f"KV usage {end['kv_usage']:g}",
        "anonymous PSS": f"{start['anonymous_bytes'] / MIB:.1f} MiB after "
        f"{start['seconds']:.0f} s, {end['anonymous_bytes'] / MIB:.1f} at the end: "
        f"{growth['anonymous']:+.2%} ({growth['without_kv']:+.2%} without KV)",
        "queues": ", ".join(f"{name} {value:g}" for name, value in report["queues"].items()),
        "counters": ", ".join(f"{name} {value:g}" for name, value in report["counters"].items()),
        "latency": ", ".join(f"{name} {value:g}" for name, value in report["latency"].items()),
        "CPU": f"server {report['server_cpu_share']:.0%}, client {report['client_cpu_share']:.1%}",
    }
    lines = [title + (f", {report['note']}" if report["note"] else ""), "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items()]
    failed = report["failed_checks"]
    lines += ["", *(f"FAILED: {text}" for text in failed)] if failed else ["", "all checks passed"]
    return "\n".join(lines)
