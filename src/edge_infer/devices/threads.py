"""How many threads to run, and on which CPUs: what the machine and its limits really grant.

threads = min(affinity, floor(cgroup quota), physical or performance cores). More than the quota is
throttled by the kernel for most of each period, and one late thread stops all at the barrier.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge_infer.cgroups import cgroup_folders, parse_int, read_limit, read_text
from edge_infer.devices.topology import CpuTopology, parse_cpu_list, read_topology

THREADS_VARIABLE = "EDGE_INFER_THREADS"


@dataclass(frozen=True)
class ThreadPlan:
    """The threads to run.

    Attributes:
        cpus: the CPU of each thread, or empty for threads that are not pinned.
        reasons: why, a limit a line, the deciding ones marked by what they say.
    """

    threads: int
    cpus: list[int]
    reasons: list[str]


@dataclass(frozen=True)
class CpuQuota:
    """CPU time per time, in CPUs, and the file that says so."""

    cpus: float
    source: Path


def cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """The smallest CPU bandwidth limit of this process's cgroups, v1 and v2; None without one."""
    found: list[CpuQuota] = []
    for folder in cgroup_folders("cpu", root):
        if folder.version == 2:
            source = folder.path / "cpu.max"
            quota_text, _, period_text = (read_text(source) or "max").partition(" ")
            quota = None if quota_text == "max" else parse_int(source, quota_text)
            period = parse_int(source, period_text or "100000")
        else:
            source = folder.path / "cpu.cfs_quota_us"
            quota = read_limit(source)
            period = read_limit(folder.path / "cpu.cfs_period_us") or 100_000
        if quota is not None and period > 0:
            found.append(CpuQuota(quota / period, source))
    return min(found, key=lambda q: q.cpus, default=None)


def cpuset(root: Path = Path("/")) -> list[int] | None:
    """The CPUs that the innermost cpuset grants; None when no cpuset says anything."""
    for folder in cgroup_folders("cpuset", root):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            text = read_text(folder.path / name)
            if text:
                return parse_cpu_list(text, folder.path / name)
    return None


def choose_threads(
    requested: int | None = None,
    *,
    root: Path = Path("/"),
    affinity: Iterable[int] | None = None,
) -> ThreadPlan:
    """Choose the thread count and CPUs.

    `requested`, or else EDGE_INFER_THREADS, replaces the choice but cannot exceed the usable
    CPUs. `affinity` is this thread's own (sched_getaffinity) unless given.

    Raises ValueError, naming the value and the limit, for a count that cannot be had.
    """
    topology = read_topology(root)
    usable, reasons = _usable_cpus(topology, root, affinity)
    asked, name = _requested(requested)
    quota = cpu_quota(root)
    cores, described = _cores(topology, usable)
    reasons.append(described)
    if asked is not None:
        if asked > len(usable):
            raise ValueError(
                f"{name} is {asked}, but this process may run on {len(usable)} "
                f"CPUs only ({_ranges(usable)}): {reasons[0]}"
            )
        reasons.append(f"{name} asks for {asked}")
        threads = asked
    else:
        threads = len(cores)
    unpinned = False
    if quota is not None:
        granted = max(1, math.floor(quota.cpus))
        reasons.append(f"cgroup quota of {quota.cpus:g} CPUs ({quota.source}): {granted} threads")
        if asked is None:
            threads = min(threads, granted)
        elif asked > quota.cpus:
            reasons.append(f"{asked} threads exceed the quota: the kernel will throttle them")
        # Others share these CPUs within quotas of their own, and would pin to the same ones.
        unpinned = quota.cpus < len(usable)
    if unpinned:
        reasons.append("not pinned: the quota is less than the CPUs, which others share")
        return ThreadPlan(threads, [], reasons)
    return ThreadPlan(threads, _pin_order(topology, usable, cores)[:threads], reasons)


def _requested(requested: int | None) -> tuple[int | None, str]:
    """The count asked for, and by what name; ValueError when it is no positive integer."""
    if requested is not None:
        if isinstance(requested, bool) or not isinstance(requested, int) or requested < 1:
            raise ValueError(f"threads must be an integer of at least 1, not {requested!r}")
        return requested, "threads"
    text = os.environ.get(THREADS_VARIABLE, "").strip()
    if not text:
        return None, THREADS_VARIABLE
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ValueError(f"{THREADS_VARIABLE} must be an integer of at least 1, not {text!r}")
    return int(text), THREADS_VARIABLE


def _usable_cpus(
    topology: CpuTopology, root: Path, affinity: Iterable[int] | None
) -> tuple[list[int], list[str]]:
    allowed = set(os.sched_getaffinity(0) if affinity is None else affinity)
    online = {cpu.number for cpu in topology.cpus}
    usable = sorted(allowed & online) if online else sorted(allowed)
    reasons = [f"affinity: {len(usable)} of {len(online) or len(allowed)} CPUs"]
    granted = cpuset(root)
    if granted is not None and not set(usable) <= set(granted):
        both = sorted(set(usable) & set(granted))
        if both:
            usable = both
            reasons[0] += f", cpuset: {_ranges(granted)}"
        else:
            reasons[0] += f"; the cpuset {_ranges(granted)} has none of them and is not counted"
    return usable, reasons


def _cores(topology: CpuTopology, usable: list[int]) -> tuple[list[int], str]:
    """A CPU for each core worth a thread, and why."""
    performance = topology.physical(usable, "performance")
    physical = topology.physical(usable)
    if topology.is_hybrid and performance:
        return performance, (
            f"{len(performance)} performance cores of {len(physical)} (told by "
            f"{topology.kinds_from}): efficiency cores would hold them up at each barrier"
        )
    if physical and len(physical) < len(usable):
        return physical, f"{len(physical)} physical cores: their SMT siblings share the same units"
    return physical or usable, f"{len(physical or usable)} physical cores"


def _pin_order(topology: CpuTopology, usable: list[int], cores: list[int]) -> list[int]:
    """All usable CPUs in the order threads take them: chosen cores, other cores, siblings."""
    order = [*cores, *topology.physical(usable), *usable]
    return list(dict.fromkeys(order))


def _ranges(numbers: Iterable[int]) -> str:
    """A compact list such as `0-3,8`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in spans)
