"""What machine a measurement ran on, and how busy it was, without naming the host."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

# Best first. The name becomes part of the results folder, the flags are those of /proc/cpuinfo.
ISA_LEVELS = (
    ("amx", ("amx_tile", "amx_int8")),
    ("avx512vnni", ("avx512_vnni",)),
    ("avxvnni", ("avx_vnni",)),
    ("avx2", ("avx2",)),
    ("i8mm", ("i8mm",)),
    ("dotprod", ("asimddp",)),
)
X86_PREFIXES = ("amx", "avx", "fma", "f16c")
ARM_PREFIXES = ("asimd", "i8mm", "bf16", "sve", "sme")


@dataclass(frozen=True)
class Machine:
    """The parts of a machine that explain its speed.

    Attributes:
        cpu: brand string, or implementer and part on Arm.
        family, model, stepping: CPUID numbers; empty where there are none.
        cores: CPUs this process may run on.
        isa_flags: SIMD and matrix extensions the kernel reports.
        best_isa: strongest entry of ISA_LEVELS, or "base".
    """

    architecture: str
    cpu: str
    family: str
    model: str
    stepping: str
    cores: int
    memory_bytes: int
    isa_flags: list[str]
    best_isa: str
    kernel: str
    transparent_hugepages: str

    @property
    def slug(self) -> str:
        """Folder name under results/: brand, family and model, cores, best ISA."""
        brand = re.sub(r"\((r|tm)\)|\bcpu\b|@.*", " ", self.cpu.lower())
        words = re.findall(r"[a-z0-9]+", brand)
        numbers = f"f{self.family}m{self.model}" if self.family else self.architecture
        return "-".join([*words, numbers, f"{self.cores}c", self.best_isa])


@dataclass(frozen=True)
class Load:
    """How busy the machine was at one moment.

    Attributes:
        total_ticks, steal_ticks, idle_ticks: clock ticks since boot, over all CPUs.
        loadavg_1m: runnable tasks, averaged over a minute.
    """

    total_ticks: int
    steal_ticks: int
    idle_ticks: int
    loadavg_1m: float


def _first_cpu(cpuinfo: str) -> dict[str, str]:
    """Return the fields of the first processor in a /proc/cpuinfo text."""
    block = cpuinfo.strip().split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def parse_cpuinfo(cpuinfo: str) -> tuple[str, str, str, str, list[str]]:
    """Return brand, family, model, stepping and sorted ISA flags of a /proc/cpuinfo text."""
    fields = _first_cpu(cpuinfo)
    arm_name = f"arm {fields.get('CPU implementer', '')} {fields.get('CPU part', '')}".strip()
    flags = [flag for flag in fields.get("flags", "").split() if flag.startswith(X86_PREFIXES)]
    flags += [flag for flag in fields.get("Features", "").split() if flag.startswith(ARM_PREFIXES)]
    return (
        fields.get("model name", arm_name),
        fields.get("cpu family", ""),
        fields.get("model", ""),
        fields.get("stepping", ""),
        sorted(flags),
    )


def best_isa(flags: list[str]) -> str:
    """Return the strongest level of ISA_LEVELS whose flags are all present, else "base"."""
    for name, needed in ISA_LEVELS:
        if set(needed) <= set(flags):
            return name
    return "base"


def describe() -> Machine:
    """Return this machine's description."""
    cpu, family, model, stepping, flags = parse_cpuinfo((PROC / "cpuinfo").read_text())
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    setting = re.search(r"\[(\w+)\]", pages.read_text()) if pages.exists() else None
    return Machine(
        architecture=platform.machine(),
        cpu=cpu,
        family=family,
        model=model,
        stepping=stepping,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        isa_flags=flags,
        best_isa=best_isa(flags),
        kernel=platform.release().partition("-")[0],
        transparent_hugepages=setting.group(1) if setting else "absent",
    )


def parse_load(stat: str, loadavg: str) -> Load:
    """Return the load from the texts of /proc/stat and /proc/loadavg.

    Field order: Linux Documentation/filesystems/proc.rst, section 1.8; guest time is already
    contained in user time and is not added again.
    """
    ticks = [int(value) for value in stat.splitlines()[0].split()[1:9]]
    return Load(sum(ticks), ticks[7], ticks[3] + ticks[4], float(loadavg.split()[0]))


def load_now() -> Load:
    """Return the machine's load at this moment."""
    return parse_load((PROC / "stat").read_text(), (PROC / "loadavg").read_text())


def steal_share(before: Load, after: Load) -> float:
    """Return the share of CPU time between two readings that the hypervisor took, 0 to 1."""
    total = after.total_ticks - before.total_ticks
    return (after.steal_ticks - before.steal_ticks) / total if total > 0 else 0.0


def others_share(before: Load, after: Load, own_seconds: float) -> float:
    """Return the share of CPU time that processes other than the measured one used, 0 to 1.

    `own_seconds` is the CPU time of the measured process tree between the two readings.
    """
    total = after.total_ticks - before.total_ticks
    if total <= 0:
        return 0.0
    unused = (after.idle_ticks - before.idle_ticks) + (after.steal_ticks - before.steal_ticks)
    own = own_seconds * os.sysconf("SC_CLK_TCK")
    return max(0.0, (total - unused - own) / total)


def git_state(repository: Path) -> tuple[str, bool]:
    """Return the commit of a work tree and whether tracked files differ from it.

    A tree without a commit or outside git is reported as "none" and changed.
    """
    git = ["git", "-C", str(repository)]
    head = subprocess.run(
        [*git, "rev-parse", "--verify", "-q", "HEAD"], capture_output=True, text=True, check=False
    )
    if head.returncode != 0:
        return "none", True
    status = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"],
        capture_output=True,
        text=True,
        check=True,
    )
    return head.stdout.strip(), bool(status.stdout.strip())
