"""What cores this machine has: physical cores, SMT siblings, performance and efficiency cores.

Source: Linux Documentation/admin-guide/cputopology.rst; ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge_infer.cgroups import parse_int, read_text

CoreKind = Literal["performance", "efficiency"]

# A core below this share of the fastest one's capacity (instructions per clock included) or
# frequency is an efficiency core. Favoured cores of one kind differ by a few percent only;
# little cores reach 0.3 to 0.6 in capacity and 0.65 to 0.75 in frequency.
CAPACITY_SHARE = 0.75
FREQUENCY_SHARE = 0.8


@dataclass(frozen=True)
class LogicalCpu:
    """One CPU number of the kernel.

    Attributes:
        core: the CPUs of its physical core, itself included, ascending.
        package: socket number.
    """

    number: int
    core: tuple[int, ...]
    package: int
    kind: CoreKind


@dataclass(frozen=True)
class CpuTopology:
    """The online CPUs, ascending, and what told performance from efficiency cores."""

    cpus: tuple[LogicalCpu, ...]
    kinds_from: str

    @property
    def is_hybrid(self) -> bool:
        """Whether there are cores of both kinds."""
        return len({cpu.kind for cpu in self.cpus}) > 1

    def physical(self, allowed: Iterable[int], kind: CoreKind | None = None) -> list[int]:
        """One CPU for each physical core with a CPU in `allowed`, the lowest, ascending."""
        usable = set(allowed)
        chosen: list[int] = []
        taken: set[tuple[int, ...]] = set()
        for cpu in self.cpus:
            if cpu.number in usable and cpu.core not in taken and kind in (None, cpu.kind):
                taken.add(cpu.core)
                chosen.append(cpu.number)
        return chosen


def parse_cpu_list(text: str, source: str | Path = "cpu list") -> list[int]:
    """The numbers of a kernel list such as `0-3,8`; ValueError names `source`."""
    numbers: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{source}: expected a list such as 0-3,8, found {text!r}")
        low, high = int(first), int(last or first)
        if high < low or high >= 1 << 16:
            raise ValueError(f"{source}: bad range {part!r} in {text!r}")
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def read_topology(root: Path = Path("/")) -> CpuTopology:
    """Read the topology from sysfs. Without one (some containers), every CPU is a core."""
    base = root / "sys/devices/system/cpu"
    numbers = _read_list(base / "online")
    if not numbers:
        numbers = sorted(int(f.name[3:]) for f in base.glob("cpu[0-9]*") if f.name[3:].isdigit())
    kinds, source = _core_kinds(root, base, numbers)
    cpus = []
    for number in numbers:
        topology = base / f"cpu{number}/topology"
        core = _read_list(topology / "core_cpus_list") or _read_list(
            topology / "thread_siblings_list"
        )
        package = _read_int(topology / "physical_package_id") or 0
        cpus.append(LogicalCpu(number, tuple(core or [number]), package, kinds[number]))
    return CpuTopology(tuple(cpus), source)


def _core_kinds(root: Path, base: Path, numbers: list[int]) -> tuple[dict[int, CoreKind], str]:
    """The kind of each CPU and where it comes from: PMU type, capacity, then frequency."""
    atoms = _read_list(root / "sys/devices/cpu_atom/cpus")
    if atoms and _read_list(root / "sys/devices/cpu_core/cpus"):
        return {n: "efficiency" if n in set(atoms) else "performance" for n in numbers}, "PMU type"
    for name, share, source in (
        ("cpu_capacity", CAPACITY_SHARE, "capacity"),
        ("cpufreq/cpuinfo_max_freq", FREQUENCY_SHARE, "maximum frequency"),
    ):
        read = {n: _read_int(base / f"cpu{n}/{name}") for n in numbers}
        values = {n: value for n, value in read.items() if value is not None}
        if len(values) == len(numbers) and numbers and min(values.values()) < max(values.values()):
            floor = share * max(values.values())
            kinds: dict[int, CoreKind] = {
                n: "efficiency" if value < floor else "performance" for n, value in values.items()
            }
            return kinds, source
    return dict.fromkeys(numbers, "performance"), "uniform"


def _read_list(path: Path) -> list[int]:
    return parse_cpu_list(read_text(path) or "", path)


def _read_int(path: Path) -> int | None:
    text = read_text(path)
    return None if text is None else parse_int(path, text)
