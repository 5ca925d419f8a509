"""Interleaved passes over arms: their order, their aggregation, and the result that is kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from harness.arm import Arm, Run
from harness.stats import paired_ratio, summarize

SCHEMA_VERSION = 1
MIB = 2**20
# Two busy-waiting threads lose far more speed than the share of CPU time that others take.
DISTURBED_SHARE = 0.05


def schedule(names: Sequence[str], passes: int, seed: int) -> list[list[str]]:
    """Return the order of arms in each pass.

    Passes come in pairs: a seeded shuffle, then its reverse, so over a pair every arm is as often
    before another as after it and a drift of the machine does not favour one.
    """
    rng = random.Random(seed)
    orders: list[list[str]] = []
    for index in range(passes):
        if index % 2 == 0:
            order = list(names)
            rng.shuffle(order)
            orders.append(order)
        else:
            orders.append(orders[-1][::-1])
    return orders


def run_passes(
    arms: Sequence[Arm], orders: list[list[str]], launch: Callable[[Arm], Run]
) -> list[tuple[int, Run]]:
    """Run every arm once per pass; return (pass index, run) in the order they ran.

    An arm that failed is not started again: it has no figure any more.
    """
    by_name = {arm.name: arm for arm in arms}
    failed: set[str] = set()
    runs: list[tuple[int, Run]] = []
    for index, order in enumerate(orders):
        for name in order:
            if name in failed:
                continue
            run = launch(by_name[name])
            runs.append((index, run))
            if run.failure is not None:
                failed.add(name)
    return runs


def arm_result(arm: Arm, labels: list[str], runs: list[Run]) -> dict[str, Any]:
    """Return one arm's part of the result: figures if no run of it failed, else the failure.

    `runs` are the arm's own, timed and memory runs alike; only timed ones give speeds.
    """
    shown = {"command": arm.shown_command, **arm.about}
    failures = [run.failure for run in runs if run.failure is not None]
    if failures or not runs:
        return {**shown, "failure": failures[0] if failures else "never ran"}
    readings = [run.reading for run in runs if run.reading is not None]
    proof = readings[0].proof
    if any(reading.proof != proof for reading in readings):
        return {**shown, "failure": "the path proof differs between runs"}
    timed = [run.reading for run in runs if run.peak is None and run.reading is not None]
    peaks = [run for run in runs if run.peak is not None]
    return {
        **shown,
        "failure": None,
        "proof": proof,
        "figures": {
            label: asdict(summarize([reading.speeds[label] for reading in timed]))
            for label in labels
        },
        "peak_memory": [
            {**asdict(run.peak), "total_bytes": run.peak.total_bytes, "samples": run.memory_samples}
            for run in peaks
            if run.peak is not None
        ],
    }


def ratios(results: dict[str, Any], first: str, labels: list[str], seed: int) -> dict[str, Any]:
    """Return the paired ratios of `first` to every other arm that has figures."""
    if first not in results or results[first]["failure"] is not None:
        return {}
    own = results[first]["figures"]
    return {
        f"{first} / {name}": {
            label: asdict(
                paired_ratio(own[label]["samples"], result["figures"][label]["samples"], seed)
            )
            for label in labels
        }
        for name, result in results.items()
        if name != first and result["failure"] is None
    }


def run_record(index: int | None, run: Run) -> dict[str, Any]:
    """Return one run as it is stored; `index` is the pass, or None for a memory run."""
    return {
        "pass": index,
        "arm": run.arm,
        "failure": run.failure,
        "speeds": run.reading.speeds if run.reading else None,
        "wall_seconds": run.wall_seconds,
        "cpu_seconds": run.cpu_seconds,
        "load_before": asdict(run.before),
        "load_after": asdict(run.after),
        "steal": run.steal,
        "others": run.others,
        "peak": asdict(run.peak) if run.peak else None,
    }


def table(result: dict[str, Any]) -> str:
    """Return the result as text: speeds as median [min to max], then memory, then ratios."""
    labels = result["labels"]
    lines = [
        f"{result['name']}: {result['machine_slug']}, {result['passes']} passes, tok/s"
        + (f", {result['note']}" if result["note"] else ""),
        "",
        "| arm | " + " | ".join(labels) + " | peak PSS MiB (anonymous + file) | path |",
        "|---" * (len(labels) + 3) + "|",
    ]
    for name, arm in result["arms"].items():
        if arm["failure"] is not None:
            lines.append(f"| {name} | failed: {arm['failure'].splitlines()[0]} |")
            continue
        speeds = [
            f"{figure['median']:.4g} [{figure['low']:.4g} to {figure['high']:.4g}]"
            for figure in (arm["figures"][label] for label in labels)
        ]
        memory = max(arm["peak_memory"], key=lambda peak: peak["total_bytes"], default=None)
        cells = [name, *speeds, _memory(memory), _path(arm["proof"])]
        lines.append(f"| {' | '.join(cells)} |")
    for pair, by_label in result["ratios"].items():
        values = ", ".join(
            f"{label} {ratio['median']:.3f} [{ratio['ci_low']:.3f} to {ratio['ci_high']:.3f}]"
            for label, ratio in by_label.items()
        )
        lines += ["", f"{pair}, median of paired ratios [95% interval]: {values}"]
    if result["ratios"] and result["passes"] < 9:
        lines += ["", "fewer than 9 passes: the intervals are unreliable"]
    taken = [run["steal"] + run["others"] for run in result["runs"]]
    disturbed = [share for share in taken if share > DISTURBED_SHARE]
    if disturbed:
        lines += [
            "",
            f"disturbed: in {len(disturbed)} of {len(taken)} runs other work or the hypervisor "
            f"took more than {DISTURBED_SHARE:.0%} of the CPU time, at most {max(disturbed):.0%}",
        ]
    return "\n".join(lines)


def _memory(peak: dict[str, Any] | None) -> str:
    """Return one peak as "total (anonymous + file)" in MiB."""
    if peak is None:
        return "not measured"
    anonymous = peak["anonymous_bytes"] + peak["shared_bytes"]
    return (
        f"{peak['total_bytes'] / MIB:.0f} ({anonymous / MIB:.0f} + {peak['file_bytes'] / MIB:.0f})"
    )


def _path(proof: dict[str, Any]) -> str:
    """Return a proof in a few words."""
    if "isa" in proof:
        return str(proof["isa"])
    return ", ".join(f"{name} {size:g} MiB" for name, size in proof["model_buffers_mib"].items())
