"""One server under one number of streams, and the aggregation of such runs over passes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness import server_targets
from harness.comparison import DISTURBED_SHARE, MIB
from harness.load_figures import MEASURES, Figures, figures, raw_record
from harness.machine import load_now, others_share, steal_share
from harness.memory import Pss
from harness.server_arms import Seats, ServerArm, launch
from harness.server_process import ServerError
from harness.stats import paired_ratio, summarize
from harness.traffic import Answer, LoadRun, Traffic, run_load, warm_up

SCHEMA_VERSION = 1
READY_SECONDS = 300.0


class LoadError(RuntimeError):
    """A request of the warm-up or of a load failed."""


@dataclass(frozen=True)
class LoadRecord:
    """One load on one server process.

    Attributes:
        server_cpu_share: CPU time of the server over that of all cores.
        steal, others: shares of CPU time taken by the hypervisor and by other processes.
    """

    traffic: str
    figures: Figures
    answers: list[Answer]
    server_cpu_share: float
    steal: float
    others: float


@dataclass(frozen=True)
class ServerRun:
    """One server process of one arm in one pass. `failure` is None when all loads succeeded.

    Attributes:
        pss: memory of the process tree after the loads.
    """

    pass_index: int
    arm: str
    streams: int
    ready_ms: float
    loads: list[LoadRecord]
    pss: Pss
    failure: str | None


def label(traffic: str, streams: int) -> str:
    """Return a load's name, for example "distinct x8"."""
    return f"{traffic} x{streams}"


def run_server(
    arm: ServerArm,
    seats: Seats,
    loads: Sequence[Traffic],
    turns: int,
    pass_index: int,
    timeout_seconds: float,
) -> ServerRun:
    """Start a server, warm it up, and put each load on it; a failure ends the run."""
    ready_ms, records, pss = 0.0, [], Pss()
    try:
        with launch(arm, seats, READY_SECONDS) as server:
            ready_ms = server.ready_ms
            for traffic in loads:
                where = server.port, arm.body, traffic, seats.streams
                failures = asyncio.run(warm_up(*where, timeout_seconds))
                if failures:
                    raise LoadError(failures[0])
                before, cpu = load_now(), server.cpu_seconds()
                load = asyncio.run(run_load(*where, turns, pass_index, timeout_seconds))
                after, cpu = load_now(), server.cpu_seconds() - cpu
                record = _record(traffic, load, cpu)
                own = cpu + load.client_cpu_seconds
                records.append(
                    LoadRecord(
                        **record,
                        steal=steal_share(before, after),
                        others=others_share(before, after, own),
                    )
                )
            pss = server.pss()
            if not server.alive():
                raise LoadError(f"the server ended: {server.log_tail()}")
    except (ServerError, LoadError, ValueError) as error:
        failure = f"{seats.streams} streams: {error}"
        return ServerRun(pass_index, arm.name, seats.streams, ready_ms, records, pss, failure)
    return ServerRun(pass_index, arm.name, seats.streams, ready_ms, records, pss, None)


def _record(traffic: Traffic, load: LoadRun, server_cpu_seconds: float) -> dict[str, Any]:
    """Return the part of a LoadRecord that the load itself gives; ValueError if it failed."""
    cores = len(os.sched_getaffinity(0))
    return {
        "traffic": traffic.name,
        "figures": figures(load, traffic.prompt_tokens, cores),
        "answers": load.answers,
        "server_cpu_share": server_cpu_seconds / (load.wall_seconds * cores),
    }


def arm_result(runs: Sequence[ServerRun]) -> dict[str, Any]:
    """Return one arm's figures over its runs, or its first failure and none."""
    failures = [run.failure for run in runs if run.failure is not None]
    if failures or not runs:
        return {"failure": failures[0] if failures else "never ran"}
    by_label: dict[str, list[LoadRecord]] = {}
    memory: dict[str, list[ServerRun]] = {}
    for run in runs:
        memory.setdefault(f"x{run.streams}", []).append(run)
        for load in run.loads:
            by_label.setdefault(label(load.traffic, run.streams), []).append(load)
    return {
        "failure": None,
        "figures": {
            name: {
                measure: asdict(summarize([getattr(load.figures, measure) for load in loads]))
                for measure in (*MEASURES, "tokens_per_event", "client_cpu_share")
            }
            | {"cached_share": loads[-1].figures.cached_share}
            for name, loads in by_label.items()
        },
        "memory": {
            name: {
                "pss_bytes": asdict(summarize([run.pss.total_bytes for run in group])),
                "last": asdict(group[-1].pss),
            }
            for name, group in memory.items()
        },
        "ready_ms": asdict(summarize([run.ready_ms for run in runs])),
    }


def ratios(arms: dict[str, Any], first: str, seed: int) -> dict[str, Any]:
    """Return the paired ratios of `first` to every other arm that has figures."""
    if first not in arms or arms[first]["failure"] is not None:
        return {}
    own = arms[first]["figures"]
    return {
        f"{first} / {name}": {
            load: {
                measure: asdict(
                    paired_ratio(
                        own[load][measure]["samples"],
                        arm["figures"][load][measure]["samples"],
                        seed,
                    )
                )
                for measure in MEASURES
            }
            for load in own
        }
        for name, arm in arms.items()
        if name != first and arm["failure"] is None
    }


def run_record(run: ServerRun) -> dict[str, Any]:
    """Return one run as it is stored, each request included."""
    return {
        "pass": run.pass_index,
        "arm": run.arm,
        "streams": run.streams,
        "failure": run.failure,
        "ready_ms": run.ready_ms,
        "pss": asdict(run.pss),
        "loads": [
            {
                "traffic": load.traffic,
                "figures": asdict(load.figures),
                "server_cpu_share": load.server_cpu_share,
                "steal": load.steal,
                "others": load.others,
                **raw_record(load.answers),
            }
            for load in run.loads
        ],
    }


def table(report: dict[str, Any]) -> str:
    """Return the report as markdown: figures as median [min to max], then ratios."""
    title = f"{report['name']}: {report['machine_slug']}, {report['passes']} passes"
    columns = ("output tok/s", "total tok/s", "TTFT p50", "p95 ms", "gap p50", "p95 ms")
    lines = [
        title + (f", {report['note']}" if report["note"] else ""),
        "",
        f"| load | arm | {' | '.join(columns)} | PSS MiB | client CPU |",
        "|---" * (len(columns) + 4) + "|",
    ]
    for name in report["labels"]:
        for arm_name, arm in report["arms"].items():
            if arm["failure"] is not None:
                continue
            figure = arm["figures"][name]
            pss = arm["memory"][name.rpartition(" ")[2]]["pss_bytes"]["median"] / MIB
            cells = [_spread(figure[measure]) for measure in MEASURES]
            share = figure["client_cpu_share"]["median"]
            lines.append(f"| {name} | {arm_name} | {' | '.join(cells)} | {pss:.0f} | {share:.1%} |")
    lines += [
        f"\n{name} failed: {arm['failure']}"
        for name, arm in report["arms"].items()
        if arm["failure"] is not None
    ]
    for pair, by_label in report["ratios"].items():
        lines += ["", f"{pair}, median of paired ratios [95% interval]", ""]
        lines += ["| load | " + " | ".join(MEASURES) + " |", "|---" * (len(MEASURES) + 1) + "|"]
        for name, by_measure in by_label.items():
            values = [
                f"{ratio['median']:.3f} [{ratio['ci_low']:.3f} to {ratio['ci_high']:.3f}]"
                for ratio in (by_measure[measure] for measure in MEASURES)
            ]
            lines.append(f"| {name} | {' | '.join(values)} |")
    lines += server_targets.lines(report["targets"])
    if report["ratios"] and report["passes"] < 9:
        lines += ["", "fewer than 9 passes: the intervals are unreliable"]
    lines += _disturbed(load for run in report["runs"] for load in run["loads"])
    return "\n".join(lines)


def _spread(summary: dict[str, Any]) -> str:
    return f"{summary['median']:.4g} [{summary['low']:.4g} to {summary['high']:.4g}]"


def _disturbed(loads: Iterable[dict[str, Any]]) -> list[str]:
    """Return a sentence on loads that lost CPU time to others, if there are any."""
    taken = [load["steal"] + load["others"] for load in loads]
    high = [share for share in taken if share > DISTURBED_SHARE]
    if not high:
        return []
    return [
        "",
        f"disturbed: in {len(high)} of {len(taken)} loads other work or the hypervisor took more "
        f"than {DISTURBED_SHARE:.0%} of the CPU time, at most {max(high):.0%}",
    ]
